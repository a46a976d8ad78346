"""What it costs that several proteins share a row: attention with segments over the same row without, by mechanism.

    python benchmarks/segments.py           about three minutes on 2 cores

Forward and backward (gradients of q, k, v), B = 1, H = 8, D = 64, M = 256, float32, a row of 8,192 residues of 27
proteins. In turns, the best of each. The last line is JSON with the ratios.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import best_of, machine, random_inputs

from proteinlm.models.attention import (
    FavorConfig,
    GeneralizedConfig,
    PolySketchConfig,
    ReformerConfig,
    SoftmaxConfig,
)

LENGTH, HEADS, DIM, PROTEINS = 8192, 8, 64, 27
MECHANISMS: dict[str, Any] = {
    "relu": GeneralizedConfig(num_features=256),
    "favor": FavorConfig(num_features=256),
    "polysketch": PolySketchConfig(sketch_size=32),
    "softmax": SoftmaxConfig(),
    "reformer": ReformerConfig(),
}


def calls(config: Any, causal: bool) -> dict[str, Any]:
    """Return compiled calls, with segments and without."""
    attention = config.build(num_heads=HEADS, head_dim=DIM, key=jax.random.key(0))
    q, k, v = random_inputs(LENGTH, HEADS, DIM)
    k = q if config.shares_queries_and_keys else k
    ends = np.sort(np.random.default_rng(0).choice(np.arange(1, LENGTH), PROTEINS - 1, replace=False))
    segments = jnp.asarray(1 + np.searchsorted(ends, np.arange(LENGTH), side="right"), jnp.int32)[None]

    def gradient(q: Any, k: Any, v: Any, segments: Any) -> Any:
        return jax.grad(lambda *x: attention(*x, causal=causal, segments=segments).sum(), argnums=(0, 1, 2))(q, k, v)

    compiled = jax.jit(gradient)
    return {
        name: lambda given=given: jax.block_until_ready(compiled(q, k, v, given))
        for name, given in (("packed", segments), ("whole", None))
    }


def main() -> None:
    """Run."""
    print(machine(), flush=True)
    ratios = {}
    for name, config in MECHANISMS.items():
        for causal in (True, False):
            both = calls(config, causal)
            for call in both.values():
                call()
            best = best_of(both, 3, limit_s=20.0)
            key = f"{name}_{'causal' if causal else 'bidirectional'}"
            ratios[key] = round(best["packed"] / best["whole"], 3)
            print(f"{key}: {best['packed']:.3f} s packed, {best['whole']:.3f} s whole", flush=True)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
