import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm import alphabet
from proteinlm.analysis.windows import measure as windows
from proteinlm.errors import InputError
from proteinlm.inference.probing import Probe

EOS = alphabet.EOS


def tokens_of(*proteins, pad=0):
    parts = [np.append(alphabet.encode(protein), np.uint8(EOS)) for protein in proteins]
    return np.concatenate([*parts, np.zeros(pad, np.uint8)])


@pytest.fixture(scope="module")
def tokens():
    rng = np.random.default_rng(5)
    letters = np.array(list(alphabet.STANDARD_RESIDUES))
    return tokens_of(*("".join(rng.choice(letters, number)) for number in (9, 1, 14, 6)))


def distance_class(query, key, octaves):
    octave = 0
    while 2 ** (octave + 1) <= abs(query - key):
        octave += 1
    return octave if query > key else octaves + octave


def plainly(model, window):
    """Everything that WindowAttention holds, from whole maps by loops over pairs of tokens."""
    tokens = window.tokens
    owner = [-1] * len(tokens)
    for number, (start, stop) in enumerate(zip(window.starts, window.stops, strict=True)):
        owner[start:stop] = [number] * (stop - start)
    proteins, octaves = len(window.starts), windows.num_octaves(len(tokens))
    layers, heads = model.config.num_layers, model.config.num_heads
    sums, relative = np.zeros((2, layers, heads, proteins, proteins))
    special, profile = np.zeros((layers, heads)), np.zeros((layers, heads, 2 * octaves))
    counts, even = np.zeros((proteins, proteins, 2 * octaves), int), []
    maps = np.stack([Probe(model, tokens[None]).map(layer)[0] for layer in range(layers)])
    for i in range(len(tokens)):
        if owner[i] < 0:
            continue
        visible = range(i + 1) if model.causal else range(len(tokens))
        parts = np.zeros(3)
        for j in visible:
            weight = maps[:, :, i, j].astype(float)
            parts[2 if owner[j] < 0 else int(owner[j] != owner[i])] += 1 / len(visible)
            if owner[j] < 0:
                special += weight
                continue
            sums[:, :, owner[i], owner[j]] += weight
            relative[:, :, owner[i], owner[j]] += weight * len(visible)
            if i != j:
                place = distance_class(i, j, octaves)
                counts[owner[i], owner[j], place] += 1
                if owner[i] != owner[j]:
                    profile[:, :, place] += weight * len(visible)
        even.append(parts)
    return sums, special, relative, counts, profile, np.mean(even, 0)


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "favor"])
def test_streamed_sums_equal_those_of_whole_maps(make_model, tokens, kind, causal):
    model = make_model(kind, causal=causal)
    window = windows.read_window(model, tokens)
    # A block that does not divide the length.
    found = windows.window_attention(model, window, block=7, padded=50)
    sums, special, relative, counts, profile, even = plainly(model, window)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_allclose(found.sums, sums, atol=1e-5)
    np.testing.assert_allclose(found.special_sums, special, atol=1e-5)
    np.testing.assert_allclose(found.relative_sums, relative, atol=2e-4, rtol=1e-5)
    np.testing.assert_allclose(found.profile_sums, profile, atol=2e-4, rtol=1e-5)
    np.testing.assert_allclose(found.even, even, atol=1e-12)
    shares = windows.shares(found)
    np.testing.assert_allclose(shares.sum(-1), 1)
    np.testing.assert_allclose(shares[..., 2], special / (sums.sum((-1, -2)) + special), atol=1e-6)
    if causal:
        assert not found.sums[:, :, *np.triu_indices(4, 1)].any()
        assert not found.counts[np.triu_indices(4, 1)].any()


def test_even_attention_is_1_at_every_distance(make_model, tokens):
    model = make_model("softmax", causal=True, num_layers=3)
    with_even = {}
    for linear in (model.blocks.query, model.blocks.key):
        with_even[linear] = linear.kernel[...]
        linear.kernel[...] = jnp.zeros_like(linear.kernel[...])
    try:
        window = windows.read_window(model, tokens)
        found = windows.window_attention(model, window)
    finally:
        for linear, kernel in with_even.items():
            linear.kernel[...] = kernel
    across = found.counts.sum((0, 1)) - np.trace(found.counts)
    np.testing.assert_allclose(found.profile_sums, np.broadcast_to(across, found.profile_sums.shape), rtol=1e-5)
    np.testing.assert_allclose(windows.shares(found)[1, 0], found.even, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.booleans())
def test_every_visible_pair_of_residues_is_counted_once(lengths, causal):
    edges = np.cumsum([0, *(length + 1 for length in lengths)])
    starts = edges[:-1]
    window = windows.Window(np.zeros(edges[-1], np.uint8), starts, starts + lengths)
    counts = windows._counts(window, windows.num_octaves(int(edges[-1])), causal=causal).sum(-1)
    whole = np.outer(lengths, lengths)
    own = np.array([length * (length - 1) for length in lengths])
    np.testing.assert_array_equal(np.diag(counts), own // 2 if causal else own)
    np.testing.assert_array_equal(np.tril(counts, -1), np.tril(whole, -1))
    np.testing.assert_array_equal(np.triu(counts, 1), 0 if causal else np.triu(whole, 1))


def test_a_window_is_read_as_in_training(make_model):
    tokens = tokens_of("MKV", "ACDEF", pad=3)
    plain = windows.read_window(make_model(), tokens)
    assert plain.letters == ["MKV", "ACDEF"]
    np.testing.assert_array_equal(plain.tokens, tokens[:10])
    causal = windows.read_window(make_model(causal=True), tokens)
    np.testing.assert_array_equal(causal.tokens, np.append(np.uint8(alphabet.BOS), tokens[:9]))
    assert causal.letters == ["MKV", "ACDEF"]
    # A window that cuts its first and last protein, and begins with the <eos> of one that lies before it.
    cut = windows.read_window(make_model(), tokens_of("", "KV", "ACDEF")[:-2])
    assert cut.letters == ["KV", "ACDE"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (tokens_of("MKV"), "the window contains 1 protein, "),
        (np.zeros(5, np.uint8), "contains 0 proteins"),
        (np.concatenate([tokens_of("MKV", pad=2), tokens_of("AC")]), "padding between"),
        (tokens_of("M" * 40, "K" * 40), r"82 tokens, but this model's max_length is 64"),
        (np.array([5, 2, 99]), "the id 99"),
    ],
)
def test_windows_that_cannot_be_used(make_model, tokens, message):
    with pytest.raises(InputError, match=message):
        windows.read_window(make_model(), tokens)


def test_memory_is_linear_in_the_length(make_model, monkeypatch):
    model = make_model("softmax", num_layers=1, max_length=2048)

    def blocks(probe, layer, *, block):
        length = probe.tokens.shape[1]
        for start in range(0, length, block):
            yield start, np.ones((1, 2, length, block), np.float32)

    def peak(length):
        monkeypatch.setattr(windows.Probe, "columns", blocks)
        starts = np.arange(0, length, length // 4)
        tokens = np.full(length, 5, np.uint8)
        tracemalloc.start()
        windows.window_attention(model, windows.Window(tokens, starts, starts + length // 4 - 1), block=64)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(512), peak(2048)
    assert 0 < small < large < 5 * small


def test_heads_that_give_nothing_have_no_shares(make_model, tokens):
    found = windows.window_attention(make_model("identity"), windows.read_window(make_model("identity"), tokens))
    np.testing.assert_allclose(windows.shares(found), np.broadcast_to([1, 0, 0], (2, 2, 3)))
    silent = windows.WindowAttention(**{**vars(found), "sums": 0 * found.sums})
    assert np.isnan(windows.shares(silent)).all()


@pytest.mark.parametrize(
    ("letters", "several"), [("MK|VL", True), ("MKVL", False), ("MKV|L", False), ("|MKVL", False), ("", False)]
)
def test_a_window_of_several_proteins_is_told(letters, several):
    tokens = np.array([alphabet.EOS if x == "|" else alphabet.encode(x.encode())[0] for x in letters], np.uint8)
    assert windows.holds_several(tokens) == several
