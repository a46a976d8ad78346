import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mechanisms import CASES
from tiny_models import TINY, mechanism

from proteinlm.config import OptimizerConfig
from proteinlm.models.transformer import ProteinLM
from proteinlm.training.optimizer import is_decayed, learning_rate_schedule, make_optimizer


def run(config, parameters, gradients):
    optimizer = make_optimizer(config, len(gradients))
    state = optimizer.init(parameters)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, parameters)
        parameters = jax.tree.map(lambda p, u: p + u, parameters, updates)
    return parameters


def by_hand(config, parameter, gradients, norms, decay):
    """AdamW by the book (Loshchilov and Hutter), in float64, with clipping by a given global norm."""
    p, m, v = np.asarray(parameter, np.float64), 0.0, 0.0
    for t, (g, norm) in enumerate(zip(gradients, norms, strict=True), 1):
        g = np.asarray(g, np.float64) * min(1.0, config.clip / norm)
        m = config.b1 * m + (1 - config.b1) * g
        v = config.b2 * v + (1 - config.b2) * g * g
        step = (m / (1 - config.b1**t)) / (np.sqrt(v / (1 - config.b2**t)) + config.eps)
        p = p - config.learning_rate * (step + decay * p)
    return p


def test_it_is_adamw_with_clipping_and_spares_biases_and_scales():
    config = OptimizerConfig()
    rng = np.random.default_rng(0)
    parameters = {"kernel": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "bias": jnp.ones(4)}
    gradients = [
        {
            "kernel": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
            "bias": jnp.asarray(rng.normal(size=4), jnp.float32),
        }
        for _ in range(5)
    ]
    norms = [np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in g.values())) for g in gradients]
    assert min(norms) > config.clip
    ours = run(config, parameters, gradients)
    for name, decay in (("kernel", config.weight_decay), ("bias", 0.0)):
        theirs = by_hand(config, parameters[name], [g[name] for g in gradients], norms, decay)
        np.testing.assert_allclose(ours[name], theirs, rtol=2e-6)


def test_it_equals_torch():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[interop]'")
    config = OptimizerConfig(clip=0.0, learning_rate=3e-3)
    rng = np.random.default_rng(1)
    start = rng.normal(size=(4, 5)).astype(np.float32)
    gradients = [rng.normal(size=(4, 5)).astype(np.float32) for _ in range(6)]
    ours = run(config, {"kernel": jnp.asarray(start)}, [{"kernel": jnp.asarray(g)} for g in gradients])["kernel"]
    theirs = torch.nn.Parameter(torch.tensor(start))
    adamw = torch.optim.AdamW([theirs], lr=3e-3, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient)
        adamw.step()
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-6)


def test_schedules():
    def rates(steps, **fields):
        schedule = learning_rate_schedule(OptimizerConfig(learning_rate=1.0, **fields), 10)
        return [float(schedule(s)) for s in steps]

    assert rates([0, 5, 10]) == [1, 1, 1]
    np.testing.assert_allclose(rates([0, 1, 2, 9], warmup_steps=2), [0, 0.5, 1, 1])
    np.testing.assert_allclose(rates([0, 5, 10], schedule="linear"), [1, 0.5, 0])
    np.testing.assert_allclose(rates([0, 5, 10], schedule="cosine", final_fraction=0.2), [1, 0.6, 0.2], rtol=1e-6)
    np.testing.assert_allclose(rates([2, 6, 10], schedule="cosine", warmup_steps=2), [1, 0.5, 0], atol=1e-7)


def test_which_parameters_decay():
    tree = {"norm": {"scale": 1, "bias": 2}, "mlp": {"kernel": 3}, "embedding": 4}
    assert is_decayed(tree) == {"norm": {"scale": False, "bias": False}, "mlp": {"kernel": True}, "embedding": True}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CASES)
def test_every_model_decays_its_matrices_alone(name):
    """Normalisations of mechanisms too: what starts as all 0 or all 1 is a bias or a scale, and nothing else is."""
    config = dataclasses.replace(TINY, num_layers=1, attention=mechanism(name), tied_output=True)
    model = ProteinLM(config, causal=not config.attention.no_causal, key=jax.random.key(0))
    parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    for (path, decays), value in zip(
        jax.tree_util.tree_leaves_with_path(is_decayed(parameters)), jax.tree.leaves(parameters), strict=True
    ):
        assert decays == (len(np.unique(value)) > 1), jax.tree_util.keystr(path)
