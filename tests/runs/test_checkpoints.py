import os
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mechanisms import CAUSAL
from tiny_models import build, mechanism

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.runs.checkpoints import Checkpoints, named_arrays, with_named_arrays
from proteinlm.runs.loading import load_run


def tree(value=1.0):
    return {"model": {"a": jnp.full((2, 3), value), "b": [jnp.arange(4)]}, "step": jnp.asarray(7)}


def test_a_tree_comes_back_bit_for_bit_with_its_data_position(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, tree(step / 3), {"step": step, "plan": {"seed": 0}}, Config())
    assert checkpoints.steps() == [2, 3]
    state, data = checkpoints.restore(3, jax.eval_shape(tree))
    jax.tree.map(np.testing.assert_array_equal, state, tree(1.0))
    assert data == {"step": 3, "plan": {"seed": 0}}
    assert jax.tree.structure(state) == jax.tree.structure(tree())
    part = checkpoints.restore_model(2, jax.eval_shape(tree)["model"])
    np.testing.assert_array_equal(part["a"], np.full((2, 3), np.float32(2 / 3)))
    assert checkpoints.config(3) == Config()


def test_reading_warns_of_nothing(tmp_path, caplog):
    """A notebook shows every line that a library logs."""
    writer = Checkpoints(tmp_path)
    writer.save(1, tree(), {}, Config())
    writer.close()
    reader = Checkpoints(tmp_path, read_only=True)
    reader.restore_model(reader.steps()[-1], jax.eval_shape(tree)["model"])
    assert [record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_the_last_and_the_best_stay_each_from_a_copy_of_its_state(tmp_path):
    """Written in the background while the state that was saved is given away to the next step."""
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=2)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    a = jnp.zeros((500, 500))
    kept = []
    for number, loss in enumerate((3.0, 1.0, float("nan"), 2.0, 2.5, None), 1):
        a = step(a)
        if loss is not None:
            kept.append(checkpoints.is_among_best(loss))
        checkpoints.save(number, {"model": {"a": a}, "step": jnp.asarray(number)}, {}, Config(), loss)
        for _ in range(20):
            a = step(a)
    assert kept == [True, True, False, True, False]
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 4, 6], 2)
    template = jax.eval_shape(lambda: {"model": {"a": a}, "step": jnp.asarray(0)})
    for number in (2, 4, 6):
        state, _ = checkpoints.restore(number, template)
        np.testing.assert_array_equal(state["model"]["a"], np.full((500, 500), 21 * number - 20, np.float32))
    checkpoints.close()
    # What is best is known again.
    again = Checkpoints(tmp_path, keep=1, keep_best=2)
    assert [again.is_among_best(loss) for loss in (1.5, 2.0)] == [True, False]
    again.close()
    assert not Checkpoints(tmp_path, keep=1).is_among_best(0.0)


def test_another_shape_name_or_dtype_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, tree(), {}, Config())
    for change, words in (
        (
            {"model": {"a": jnp.zeros((2, 4)), "b": [jnp.arange(4)]}, "step": jnp.asarray(7)},
            r"model/a .*\[2, 3\].*\[2, 4\]",
        ),
        ({"model": {"a": jnp.zeros((2, 3), jnp.bfloat16), "b": [jnp.arange(4)]}, "step": jnp.asarray(7)}, "bfloat16"),
        (
            {"model": {"a": jnp.zeros((2, 3)), "c": [jnp.arange(4)]}, "step": jnp.asarray(7)},
            "2 arrays differ, first model/b",
        ),
    ):
        with pytest.raises(InputError, match=words):
            checkpoints.restore(1, jax.eval_shape(lambda change=change: change))


def test_names_of_leaves_are_unique_and_readable():
    names = named_arrays(tree())
    assert list(names) == ["model/a", "model/b/0", "step"]
    assert with_named_arrays(tree(), names, "x")["step"] == 7


def test_a_half_written_checkpoint_is_none(tiny_runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(tiny_runs["causal"], run)
    step = Checkpoints(run, read_only=True).steps()[-1]
    (run / "checkpoints" / f"{step + 1}.orbax-checkpoint-tmp-1").mkdir()
    assert Checkpoints(run, read_only=True).steps()[-1] == step
    assert load_run(run).step == step


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux",
    reason="needs a small file system, which root alone can mount: sudo make test",
)
def test_a_full_disk_is_one_sentence_and_keeps_what_was_whole(tmp_path, caplog):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("needs a small file system, which this machine does not mount: docker run --privileged")
    try:
        checkpoints = Checkpoints(tmp_path, keep=9)
        large = {"model": {"a": jax.random.normal(jax.random.key(0), (600, 600))}, "step": jnp.asarray(1)}

        def fill():
            for step in range(1, 5):
                checkpoints.save(step, large, {}, Config())
                # So that it fails while nobody waits for it.
                time.sleep(0.3)

        with pytest.raises(InputError, match="the disk is full: checkpoint of step [234] .* is of step [123]"):
            fill()
        assert 1 in Checkpoints(tmp_path, read_only=True).steps()
        assert checkpoints.steps()[0] == 1
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def cut(pattern):
    def damage(step):
        for path in step.glob(pattern):
            if path.is_file():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    run = tmp_path_factory.mktemp("two") / "run"
    checkpoints = Checkpoints(run)
    for step in (10, 20):
        checkpoints.save(step, tree(float(step)), {"step": step}, Config(), 3.0)
    checkpoints.close()
    return run


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda step: shutil.rmtree(step / "model"), "it has no model/_METADATA"),
        (lambda step: (step / "model" / "_METADATA").unlink(), "it has no model/_METADATA"),
        (lambda step: shutil.rmtree(step / "config"), "it has no config"),
        (
            lambda step: [shutil.rmtree(path) for path in step.iterdir() if path.is_dir()],
            "there is no checkpoint in it",
        ),
        (cut("model/**/d/*"), "[A-Z_]+ in model/"),
        (cut("rest/**/manifest.ocdbt"), "DATA_LOSS in rest/"),
        (cut("data/metadata"), "JSONDecodeError: .*"),
    ],
    ids=["model", "names", "config", "empty", "arrays", "manifest", "position"],
)
def test_a_damaged_checkpoint_is_one_sentence_with_a_way_on(two_checkpoints, tmp_path, damage, reason, capfd):
    run = tmp_path / "run"
    shutil.copytree(two_checkpoints, run)
    damage(run / "checkpoints" / "20")
    for read_only, advice in (
        (False, r"remove or move that folder, and the same command resumes from step 10, the one before\."),
        (True, r"name another step with --step \(there is 10\)\."),
    ):
        checkpoints = Checkpoints(run, read_only=read_only)
        with pytest.raises(InputError, match=rf"checkpoints/20 cannot be read \({reason}.*\): {advice}"):
            checkpoints.config(20), checkpoints.restore(20, jax.eval_shape(tree))
        # The other one is whole.
        assert checkpoints.restore(10, jax.eval_shape(tree))[1] == {"step": 10}
        checkpoints.close()
    shutil.rmtree(run / "checkpoints" / "10")
    checkpoints = Checkpoints(run)
    with pytest.raises(InputError, match="the same command starts from the beginning: there is no earlier checkpoint"):
        checkpoints.config(20), checkpoints.restore(20, jax.eval_shape(tree))
    checkpoints.close()
    assert "Event loop is closed" not in capfd.readouterr().err


def test_a_damaged_loss_is_said(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=1)
    for step, loss in ((1, 3.0), (2, 2.5), (3, None)):
        checkpoints.save(step, tree(), {}, Config(), loss)
    assert (checkpoints.best(), checkpoints.is_among_best(2.75), checkpoints.is_among_best(2.0)) == (2, False, True)
    # The best stays for its loss alone.
    assert checkpoints.steps() == [2, 3]
    checkpoints.close()
    (tmp_path / "checkpoints" / "2" / "metrics" / "metrics").write_text('{"lo')
    with pytest.raises(
        InputError, match="metrics/metrics, the loss on valid at step 2, is damaged .*: remove that file"
    ):
        Checkpoints(tmp_path, read_only=True)
    (tmp_path / "checkpoints" / "2" / "metrics" / "metrics").unlink()
    assert Checkpoints(tmp_path, read_only=True).steps() == [2, 3]


DRAWN = ["favor", "hyperbolic_hadamard", "trigonometric_givens", "polysketch_random", "reformer", "linformer_redrawn"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", DRAWN)
def test_every_kind_of_draw_comes_back_and_goes_on(tmp_path, name):
    """Matrices, signs, orders and angles of random features, after a redraw, bit for bit; and so do later redraws."""
    graph, state = nnx.split(build(attention=mechanism(name), causal=name in CAUSAL))
    first = [np.asarray(x) for x in named_arrays(state).values()]
    model = nnx.merge(graph, state)
    model.redraw(jax.random.key(5))
    drawn = nnx.split(model)[1]
    changed = [not np.array_equal(a, b) for a, b in zip(first, named_arrays(drawn).values(), strict=True)]
    assert any(changed)
    checkpoints = Checkpoints(tmp_path)
    saved = {"model": drawn, "step": jnp.asarray(1)}
    checkpoints.save(1, saved, {"step": 1}, Config())
    restored, _ = checkpoints.restore(1, jax.eval_shape(lambda: saved))
    again = nnx.merge(graph, restored["model"])
    for key in (None, jax.random.key(6)):
        if key is not None:
            model.redraw(key)
            again.redraw(key)
        jax.tree.map(np.testing.assert_array_equal, nnx.split(again)[1], nnx.split(model)[1])
