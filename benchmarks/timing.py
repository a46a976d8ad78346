"""How things are timed: compiled first, in turns, and the best of several: a shared machine only adds time."""

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def seconds(call: Callable[[], Any]) -> float:
    """Return the time of one call, until its result is there."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def best_of(calls: dict[str, Callable[[], Any]], repeats: int, limit_s: float = 60.0) -> dict[str, float]:
    """Return each call's best time, in seconds.

    No new turn begins after `limit_s` seconds.

    Calls take turns, so that a busy minute does not fall on one of them alone. In its turn each runs twice, if that is
    a matter of seconds: the first run pays for what the one before it left behind, another library's spinning threads
    and caches full of other things.
    """
    start = time.perf_counter()
    best = {name: seconds(call) for name, call in calls.items()}
    for _ in range(repeats):
        if time.perf_counter() - start > limit_s:
            break
        for name, call in calls.items():
            for _ in range(2 if best[name] < 15 else 1):
                best[name] = min(best[name], seconds(call))
    return best


def matrix_product_rate(size: int = 4096) -> float:
    """Return the machine's own float32 matrix products, in GFLOP/s."""
    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(lambda a: a @ a)
    return 2 * size**3 / best_of({"product": lambda: product(a)}, 5)["product"] / 1e9


def machine() -> dict[str, Any]:
    """Return what figures depend on: device, cores, load, versions."""
    return {
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "malloc": os.environ.get("GLIBC_TUNABLES", "default"),
    }


def memory(compiled: Any) -> int:
    """Return the bytes of temporaries of a compiled program."""
    return compiled.memory_analysis().temp_size_in_bytes


def random_inputs(length: int, heads: int, dim: int, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
    """Return q, k, v [1, L, H, D]."""
    return tuple(
        jax.random.normal(key, (1, length, heads, dim), dtype) for key in jax.random.split(jax.random.key(7), 3)
    )
