"""The programs in docs/ run as they stand, links lead somewhere, and the site can be built."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_the_programs_of_data_md(tiny_dataset, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sprot").symlink_to(tiny_dataset)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "data.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    # The dataset of the tests has fewer residues than 8 windows of 8,192.
    program = "\n".join(blocks).replace("length=8192, batch_size=8", "length=128, batch_size=2")
    found: dict = {}
    exec(compile(program, "data.md", "exec"), found)
    assert set(found["dataset"].counts) == {"train", "valid", "test", "ood"}
    assert next(found["batches"])["tokens"].shape == (2, 128)
    found["batches"].close()


@pytest.mark.parametrize("page", sorted([*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_page_of_the_api_begins_with_the_lines_of_the_readme():
    block = r"```python\n(import proteinlm\n.*?)```"
    readme, page = (
        re.search(block, path.read_text(encoding="utf-8"), re.DOTALL)
        for path in (DOCS.parent / "README.md", DOCS / "api.md")
    )
    assert readme
    assert page
    assert readme[1] == page[1]


@pytest.mark.slow
def test_the_site_is_built(tmp_path):
    """With --strict: a link or a reference that leads nowhere fails it."""
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -e '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=DOCS.parent, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "docs" / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("runs.loading.load_run", "inference.run.Run.hidden_states", "evaluate"):
        assert f'id="proteinlm.{name}"' in page
