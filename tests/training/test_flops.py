"""Products counted in a trace: against their formula, and against XLA where nothing loops."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from proteinlm.models.attention.exact.exact_attention import Softmax, exact_attention
from proteinlm.training.flops import Work, work_of

A = jax.ShapeDtypeStruct((8, 16), jnp.float32)
B = jax.ShapeDtypeStruct((16, 16), jnp.float32)
ONCE = Work(2 * 8 * 16 * 16, 4 * (8 * 16 + 16 * 16 + 8 * 16))


def repeated(a, b, times=5):
    return jax.lax.scan(lambda a, _: (jnp.sin(a @ b), None), a, length=times)[0]


def unrolled(a, b, times=5):
    for _ in range(times):
        a = jnp.sin(a @ b)
    return a


def test_a_product_is_two_operations_for_each_term():
    assert work_of(jnp.matmul, A, B) == ONCE
    q = jax.ShapeDtypeStruct((2, 10, 3, 4), jnp.bfloat16)
    scores = work_of(lambda q, k: jnp.einsum("bihd,bjhd->bhij", q, k), q, q)
    assert scores == Work(2 * (2 * 3 * 10 * 10) * 4, 2 * (2 * (2 * 10 * 3 * 4) + 2 * 3 * 10 * 10))


def test_loops_count_as_often_as_they_run():
    assert work_of(repeated, A, B) == ONCE.times(5) == work_of(unrolled, A, B)
    nested = work_of(lambda a, b: jax.lax.map(lambda a: repeated(a, b), jnp.stack([a, a, a])), A, B)
    assert nested.flops == 15 * ONCE.flops
    loop = work_of(lambda a, b: jax.lax.while_loop(lambda a: a.sum() < 0, lambda a: a @ b, a), A, B)
    assert loop == Work(ONCE.flops, ONCE.product_bytes, unknown_loops=1)


def test_a_triangular_loop_counts_as_it_runs():
    """Blocks before each, as in causal exact attention: 0 + 1 + ... + 4 of 5."""

    def triangular(a, b):
        def outer(a, i):
            return jax.lax.fori_loop(0, i, lambda _, a: a @ b, a), None

        return jax.lax.scan(outer, a, jnp.arange(5))[0]

    assert work_of(triangular, A, B) == ONCE.times(10)
    q = jax.ShapeDtypeStruct((1, 64, 2, 4), jnp.float32)
    attend = lambda q, k, v: exact_attention(q, k, v, Softmax(0.5), causal=True, block_size=8)  # noqa: E731
    # Two products for each pair of blocks of 8, of which 8 * 9 / 2 are not all in the future.
    assert work_of(attend, q, q, q).flops == 2 * 2 * (2 * 8 * 8 * 4) * 36


def test_flops_are_those_of_xla_where_nothing_loops():
    """XLA counts other operations too, which are few here; of a loop it counts the body once."""

    def gradient(a, b):
        return jax.grad(lambda b: unrolled(a, b).sum())(b)

    def by_xla(function):
        return jax.jit(function).lower(A, B).compile().cost_analysis()["flops"]

    np.testing.assert_allclose(by_xla(jnp.matmul), ONCE.flops)
    np.testing.assert_allclose(by_xla(gradient), work_of(gradient, A, B).flops, rtol=0.1)
    assert by_xla(repeated) < 2 * ONCE.flops


def test_what_is_computed_again_counts_again():
    def loss(a, b, remat):
        layer = lambda a, _: (jnp.sin(a @ b), None)  # noqa: E731
        return jax.lax.scan(jax.checkpoint(layer) if remat else layer, a, length=4)[0].sum()

    kept, again = (
        work_of(jax.grad(lambda b, a, remat=remat: loss(a, b, remat)), B, A).flops for remat in (False, True)
    )
    assert kept == 3 * 4 * ONCE.flops
    assert again == 4 * 4 * ONCE.flops


def test_branches_count_as_the_longest():
    work = work_of(lambda a, b: jax.lax.cond(a.sum() > 0, lambda: a @ b, lambda: a @ b @ b), A, B)
    assert work.flops == 2 * ONCE.flops


def test_parts_on_devices_add_up():
    """As if on four devices: nothing runs, so that they need not be here."""
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    rows = PartitionSpec("data")
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows)
    assert work_of(split, A, B).flops == ONCE.flops
    here = Mesh(np.array(jax.devices()[:1]), ("data",))
    assert work_of(jax.shard_map(jnp.matmul, mesh=here, in_specs=(rows, rows), out_specs=rows), A, B) == ONCE
