import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from proteinlm.analysis.maps.interactive import interactive_map, scale_of
from proteinlm.errors import InputError

LETTERS = "MKVWACDEFGHIKLMNPQRSTVWYXKLM"


@pytest.fixture(scope="module")
def maps():
    """Weights over many orders of magnitude, [2, 3, L, L]."""
    rng = np.random.default_rng(4)
    length = len(LETTERS)
    values = np.exp(3 * rng.normal(size=(2, 3, length, length))).astype(np.float32)
    return values / values.sum(-1, keepdims=True)


def embedded(path):
    """The page's meta data and the arrays that its script would read, float64 [layers, heads, n]."""
    page = path.read_text(encoding="utf-8")
    meta = json.loads(re.search(r'<script type="application/json" id="meta">(.*?)</script>', page, re.S)[1])
    arrays = re.search(r'<script type="text/plain" id="arrays">(.*?)</script>', page, re.S)[1]
    values = np.frombuffer(base64.b64decode(arrays, validate=True), "<f2").astype(np.float64) * meta["scale"]
    return meta, values.reshape(len(meta["layers"]), len(meta["heads"]), -1)


def assert_within_stated_precision(found, given, scale):
    assert (np.abs(found - given) <= np.maximum(np.abs(given) * 2.0**-11, scale * 2.0**-25) * (1 + 1e-9)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("factor", [1, 1e6, -3e-9])
def test_the_arrays_are_there_to_the_stated_precision(maps, tmp_path, causal, factor):
    given = (factor * maps).astype(np.float32)
    path = interactive_map(
        given, LETTERS, tmp_path / "new" / "map.html", name="p", causal=causal, layers=[1, 4], heads=[2, 0, 7]
    )
    meta, values = embedded(path)
    length = len(LETTERS)
    expected = given[:, :, *np.tril_indices(length)] if causal else given.reshape(2, 3, -1)
    assert_within_stated_precision(values, expected.astype(np.float64), meta["scale"])
    assert (meta["layers"], meta["heads"], meta["letters"], meta["causal"]) == ([1, 4], [2, 0, 7], LETTERS, causal)
    assert len(bytes.fromhex(meta["colours"])) == 3 * 256


def test_the_scale_is_a_power_of_two_that_nothing_exceeds():
    assert [scale_of(np.array([v])) for v in (0.0, 1.0, -1.5, 0.3, 70000.0)] == [1, 1, 2, 0.5, 131072]


def test_nothing_is_fetched_and_names_cannot_break_out(maps, tmp_path):
    name = "</script><b>&\"'__ARRAYS__ α"
    path = interactive_map(maps, LETTERS, tmp_path / "map.html", name=name, causal=False)
    page = path.read_text(encoding="utf-8")
    assert embedded(path)[0]["name"] == name
    assert page.count("</script>") == 3
    assert "<b>" not in page
    assert not re.search(r"https?:|//[a-z]+\.|src=|href=|@import|url\(", page)
    assert page.count("default-src 'none'") == 1


def test_it_is_whole_or_not_at_all(maps, tmp_path):
    path = interactive_map(maps, LETTERS, tmp_path / "map.html", name="p", causal=False)
    before = path.read_bytes()
    broken = maps.copy()
    broken[0, 0, 3, 1] = np.nan
    with pytest.raises(InputError, match="the attention of p contains weights that are not finite"):
        interactive_map(broken, LETTERS, path, name="p", causal=True)
    with pytest.raises(InputError, match="not an amino acid"):
        interactive_map(maps, LETTERS[:-1] + "@", path, name="p", causal=True)
    with pytest.raises(ValueError, match="27 letters"):
        interactive_map(maps, LETTERS[:-1], path, name="p", causal=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    # What a causal model hides is not looked at.
    broken[0, 0, 3, 1], broken[0, 0, 1, 3] = 0, np.inf
    interactive_map(broken, LETTERS, path, name="p", causal=True)


def test_too_large_arrays_name_their_size(tmp_path):
    many = np.broadcast_to(np.float32(0), (9, 8, 1024, 1024))
    with pytest.raises(InputError, match=r"9 layers and 8 heads of p would need 144 MiB; the limit is 64 MiB"):
        interactive_map(many, "A" * 1024, tmp_path / "map.html", name="p", causal=False)
    assert not list(tmp_path.iterdir())


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def opened(path, fragment, folder):
    """The page's DOM after its script ran in a browser."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=3000", "--dump-dom", path.as_uri() + fragment],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize("causal", [False, True])
def test_a_browser_shows_the_values_of_the_arrays(maps, tmp_path, causal):
    path = interactive_map(maps, LETTERS, tmp_path / "map.html", name="p", causal=causal, layers=[3, 5])
    dom = opened(path, "#layer=5&head=2&at=12,7", tmp_path / "profile")
    output = re.search(r"<output id=\"readout\"(.*?)</output>", dom, re.S)[1]
    found = dict(re.findall(r'data-([a-z]+)="([^"]*)"', output))
    assert (found["layer"], found["head"], found["at"]) == ("5", "2", "12,7")
    given = float(maps[1, 2, 11, 6])
    assert_within_stated_precision(float(found["value"]), given, scale_of(maps))
    shown = float(re.search(r"<strong>(.*?)</strong>", output)[1])
    assert shown == pytest.approx(given, rel=1e-3)
    assert "Layer 5, head 2: I12 attends to D7" in output
    strongest = re.search(r'id="strongest">(.*?)</p>', dom)[1]
    row = maps[1, 2, 11, : 12 if causal else None]
    best = int(np.argmax(row))
    assert f"most to {LETTERS[best]}{best + 1} (" in strongest
    assert float(re.search(r"together ([\d.e-]+)\.", strongest)[1]) == pytest.approx(row.sum(), rel=1e-3)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_hides_later_residues(maps, tmp_path):
    path = interactive_map(maps, LETTERS, tmp_path / "map.html", name="p", causal=True)
    dom = opened(path, "#layer=0&head=1&at=7,12", tmp_path / "profile")
    assert 'data-value="hidden"' in dom
    assert "hidden (a later residue)" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_keys_and_pointer_move_the_cursor(maps, tmp_path):
    path = interactive_map(maps, LETTERS, tmp_path / "map.html", name="p", causal=False)
    script = """<script>
    const press = (target, key, shiftKey = false) =>
      target.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true }));
    const told = document.createElement("ol");
    const note = () => {
      const { layer, head, at, value } = $("readout").dataset, item = document.createElement("li");
      item.textContent = [layer, head, at, value].join(" "); told.append(item); };
    press($("map"), "ArrowDown"); press($("map"), "ArrowRight", true); note();
    press($("map"), "End"); press(document.body, "]"); press(document.body, "}"); note();
    press($("map"), "ArrowUp", true); press(document.body, "["); press(document.body, "["); note();
    const box = $("map").getBoundingClientRect();
    $("map").dispatchEvent(new PointerEvent("pointermove", { clientX: box.right - 20, clientY: box.top + 8 })); note();
    document.body.append(told, location.hash);
    </script></body>"""
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    dom = opened(path, "", tmp_path / "profile")
    notes = [item.split() for item in re.findall(r"<li>(.*?)</li>", dom)]
    last = len(LETTERS)
    assert [note[:3] for note in notes] == [
        ["0", "0", "2,11"],
        ["1", "1", f"2,{last}"],
        ["1", "0", f"1,{last}"],
        ["1", "0", f"1,{last}"],
    ]
    for layer, head, at, value in notes:
        row, column = (int(place) - 1 for place in at.split(","))
        assert_within_stated_precision(float(value), float(maps[int(layer), int(head), row, column]), scale_of(maps))
    assert f"#layer=1&amp;head=0&amp;at=1,{last}" in dom
