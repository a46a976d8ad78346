"""A run's logits, hidden states and attention: framing, order, batches, and what is refused."""

import dataclasses
import doctest

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_models import KINDS, build, mechanism

from proteinlm import alphabet
from proteinlm.config import load_config
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.evaluate import evaluate_command
from proteinlm.inference import run as run_module
from proteinlm.inference.probing import Probe
from proteinlm.inference.run import Run
from proteinlm.runs.loading import load_run

SEQUENCES = ["MKTAYIAKQRQISFVKSHFSRQ", "M", "MSILVTRPSP", b"mkj*", "ACDEFGHIKLMNPQRSTVWYBZXOU" * 2]


def make_run(tmp_path, model):
    quickstart = load_config("quickstart_masked")
    batches = dataclasses.replace(quickstart.batches, length=model.config.max_length, buckets=())
    config = dataclasses.replace(quickstart, model=model.config, batches=batches)
    return Run(tmp_path / "run", config, 7, model, "dataset", "0" * 32)


@pytest.fixture(scope="module", params=["causal", "masked"])
def run(request, trained_runs):
    return load_run(trained_runs[request.param])


def nll(run, sequence):
    """Negative log-likelihood of a protein's residues, in nats, of the logits as the docstring explains them."""
    logits = run.logits([sequence])[0].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -log_probs[np.arange(len(logits)), alphabet.encode(sequence)].sum()


def test_results_are_those_of_residues_in_the_order_given(run):
    lengths = [22, 1, 10, 3, 50]
    logits = run.logits(iter(SEQUENCES))
    hidden = run.hidden_states(SEQUENCES, layers=(0, -1))
    assert [x.shape for x in logits] == [(length, alphabet.SIZE) for length in lengths]
    assert [x.shape for x in hidden] == [(2, length, 16) for length in lengths]
    assert {x.dtype for x in (*logits, *hidden)} == {np.dtype(np.float32)}
    assert run.logits([]) == run.hidden_states([]) == []


def test_a_sequence_alone_and_in_a_batch_agree(run):
    for compute in (run.logits, run.hidden_states):
        for together, sequence in zip(compute(SEQUENCES), SEQUENCES, strict=True):
            np.testing.assert_allclose(together, compute([sequence])[0], rtol=1e-5, atol=1e-6)
    # Letters are read as in ingest.
    np.testing.assert_array_equal(run.logits([b"mkj*"])[0], run.logits(["MKX"])[0])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name for name in KINDS if name != "reformer"])
def test_other_sequences_change_nothing_in_any_mechanism(name, tmp_path):
    """Reformer is left out: its hash buckets depend on the padded length, as in training."""
    model = build(causal=False, attention=mechanism(name))
    run = make_run(tmp_path, model)
    sequences = ["MKTAYIAKQRQISFVKSHFSRQ", "MSILV", "A" * 32]
    for together, sequence in zip(run.logits(sequences), sequences, strict=True):
        np.testing.assert_allclose(together, run.logits([sequence])[0], rtol=1e-4, atol=1e-5)


def test_row_i_predicts_residue_i(tiny_runs):
    """Causal: from the residues before it alone, <bos> first. Masked: from all, <eos> after them."""
    causal, masked = load_run(tiny_runs["causal"]), load_run(tiny_runs["masked"])
    one, two = causal.logits(["MKTAYIAKQR", "MKTAYCAKQR"])
    np.testing.assert_allclose(one[:6], two[:6], atol=1e-6)
    assert np.abs(one[6] - two[6]).max() > 1e-6
    tokens = np.array([[alphabet.BOS, *alphabet.encode("MKTAYIAKQ")]])
    np.testing.assert_allclose(one, causal.model(jnp.asarray(tokens))[0], atol=1e-5)
    tokens = np.array([[*alphabet.encode("MKTAYIAKQR"), alphabet.EOS]])
    np.testing.assert_allclose(masked.logits(["MKTAYIAKQR"])[0], masked.model(jnp.asarray(tokens))[0, :-1], atol=1e-5)


def test_the_nll_of_a_causal_run_is_that_of_sequences_parquet(tiny_runs, tmp_path):
    """Alone and in a batch. Masked runs are scored on masked residues, which `Run.logits` does not hide."""
    run = load_run(tiny_runs["causal"])
    dataset = ProteinDataset.open(run.dataset)
    evaluate_command([tiny_runs["causal"]], ("test",), None, "last")
    rows = pq.read_table(tiny_runs["causal"] / "sequences.parquet").to_pylist()
    assert len(rows) > 10
    length = run.config.batches.length
    sequences = [dataset.sequences("test", [row["row"]])[0][:length].decode() for row in rows]
    assert max(map(len, sequences)) == length
    batch = run.logits(sequences)
    for row, sequence, logits in zip(rows, sequences, batch, strict=True):
        assert row["count"] == len(sequence)
        assert nll(run, sequence) == pytest.approx(row["nll"], rel=1e-5)
        best = logits.argmax(axis=-1) == alphabet.encode(sequence)
        assert abs(int(best.sum()) - row["correct"]) <= 1


def test_hidden_states_lead_to_the_logits(tmp_path):
    """The last layer's are the output layer's input, for pre-norm and for post-norm."""
    for norm in ("pre", "post"):
        run = make_run(tmp_path, build(causal=False, norm=norm))
        (hidden,) = run.hidden_states(["MKTAYIAKQR"], layers=(0, 1, 2, -1, -3))
        head = run.model.head
        assert head is not None
        np.testing.assert_allclose(head(jnp.asarray(hidden[2])), run.logits(["MKTAYIAKQR"])[0], atol=1e-5)
        np.testing.assert_array_equal(hidden[2], hidden[3])
        np.testing.assert_array_equal(hidden[0], hidden[4])
        assert np.abs(hidden[0] - hidden[1]).max() > 1e-3
        (last,) = run.hidden_states(["MKTAYIAKQR"])
        np.testing.assert_allclose(last[0], hidden[2], atol=1e-6)


def test_attention_is_that_of_the_residues(run):
    maps = run.attention("MKTAYIAKQR")
    assert maps.shape == (2, 2, 10, 10)
    special = [alphabet.BOS] if run.model.causal else []
    tokens = np.array([[*special, *alphabet.encode("MKTAYIAKQR"), *([] if special else [alphabet.EOS])]], np.uint8)
    first = len(special)
    np.testing.assert_allclose(
        maps, Probe(run.model, tokens).maps()[:, 0, :, first : first + 10, first : first + 10], atol=1e-6
    )


def test_what_is_refused_is_named(run):
    limit = run.config.model.max_length
    for compute in (run.logits, run.hidden_states):
        with pytest.raises(InputError, match=r"one string: write \[sequence\]"):
            compute("MKTAYIAKQR")
        with pytest.raises(InputError, match=r"sequences\[1\]: the sequence is empty"):
            compute(["MKT", ""])
        with pytest.raises(InputError, match=r"sequences\[2\]: the letter '1' at residue 3 is not an amino acid"):
            compute(["MKT", "A", "MK1"])
        with pytest.raises(InputError, match=r"sequences\[0\]: the letter 'é' at residue 2"):
            compute(["Mé"])
        with pytest.raises(InputError, match=r"sequences\[1\]: the letter 'α' at residue 3 is not an amino acid"):
            compute(["M", "MKα"])
    assert run.logits(["A" * limit])[0].shape == (limit, alphabet.SIZE)
    with pytest.raises(InputError, match=rf"sequences\[1\] has {limit + 1} residues.*at most {limit}:"):
        run.logits(["MKT", "A" * (limit + 1)])
    read = limit - int(run.model.causal)
    assert run.hidden_states(["A" * read])[0].shape == (1, read, 16)
    with pytest.raises(InputError, match=rf"sequences\[0\] has {read + 1} residues.*at most {read}:"):
        run.hidden_states(["A" * (read + 1)])
    with pytest.raises(InputError, match=f"the protein has {read + 1} residues"):
        run.attention("A" * (read + 1))
    for layers in ((2,), (-3,)):
        with pytest.raises(InputError, match="it must be a sequence of layers from 0 to 1, or -2 to -1"):
            run.hidden_states(["MKT"], layers=layers)
    with pytest.raises(InputError, match="name at least one layer"):
        run.hidden_states(["MKT"], layers=())


def test_a_run_in_words(tiny_runs):
    run = load_run(tiny_runs["masked"])
    text = repr(run)
    assert text.startswith(f"Run('{tiny_runs['masked']}', step=4): masked, generalized attention, ")
    assert text.endswith("2 layers, 2 heads, width 16, max_length 128")
    assert len(text.splitlines()) == 2
    assert run.name == "masked"
    assert run.alphabet.TOKENS[run.alphabet.FIRST_RESIDUE] == "A"


def test_the_examples(tiny_runs):
    done = doctest.testmod(run_module, extraglobs={"run": load_run(tiny_runs["causal"])})
    assert (done.attempted, done.failed) == (3, 0)
