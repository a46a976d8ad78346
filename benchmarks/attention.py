"""What attention costs: each mechanism beside the others and beside code that we did not write, in one run.

    python benchmarks/attention.py --quick      the ratios that issue 3 bounds, under 10 minutes on 2 cores
    python benchmarks/attention.py              also L = 512 to 65,536 for every mechanism; table, figure; an hour

Batch 1, H = 8, D = 64, M = 256, float32. PyTorch and performer-pytorch are measured where they are installed
(`pip install '.[interop]'`); their ratios are null where they are not. The last line is JSON with the ratios.
"""

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interop
import jax
from flax import nnx
from timing import best_of, machine, matrix_product_rate, memory, random_inputs

from proteinlm.models.attention import (
    ATTENTION,
    Attention,
    FavorConfig,
    GeneralizedConfig,
    IdentityConfig,
    LinformerConfig,
    PolynomialConfig,
    PolySketchConfig,
    ReformerConfig,
    SoftmaxConfig,
)

HEADS, DIM, FEATURES = 8, 64, 256
LONGEST = 65_536
HERE = Path(__file__).parent

MECHANISMS: dict[str, Any] = {
    "relu": GeneralizedConfig(function="relu", num_features=FEATURES),
    "favor": FavorConfig(num_features=FEATURES),
    "polysketch_32": PolySketchConfig(sketch_size=32),
    "polysketch_64": PolySketchConfig(sketch_size=64),
    "polysketch_random_32": PolySketchConfig(sketch_size=32, learned=False, local=False, block_size=256),
    "linformer": LinformerConfig(max_length=LONGEST),
    "reformer": ReformerConfig(),
    "identity": IdentityConfig(),
    "softmax": SoftmaxConfig(),
    "polynomial": PolynomialConfig(),
}
# Mechanisms that have no line above are measured with their defaults.
MECHANISMS |= {kind: config() for kind, config in ATTENTION.items() if config not in map(type, MECHANISMS.values())}
QUADRATIC = ("softmax", "polynomial")
LINEAR = [name for name in MECHANISMS if name not in (*QUADRATIC, "identity")]


def build(name: str) -> Attention:
    """Return one layer's mechanism."""
    return MECHANISMS[name].build(num_heads=HEADS, head_dim=DIM, key=jax.random.key(0))


def compiled(name: str, length: int, *, causal: bool, backward: bool) -> tuple[Callable[[], Any], int]:
    """Return a call that attends, and its bytes of temporaries.

    Backward is the gradient of a sum of squares, by q, k, v and the mechanism's own trained weights.
    """
    graph, weights, drawn = nnx.split(build(name), nnx.Param, ...)
    q, k, v = random_inputs(length, HEADS, DIM)

    def attend(weights, q, k, v, drawn):
        attention = nnx.merge(graph, weights, drawn)
        return attention(q, q if attention.config.shares_queries_and_keys else k, v, causal=causal)

    def loss(*arguments):
        return (attend(*arguments) ** 2).sum()

    function = jax.grad(loss, argnums=(0, 1, 2, 3)) if backward else attend
    program = jax.jit(function).lower(weights, q, k, v, drawn).compile()
    return lambda: program(weights, q, k, v, drawn), memory(program)


def decoding(name: str, position: int) -> tuple[Callable[[], Any], int]:
    """Return a call that decodes the token at `position`, and the bytes of the state."""
    attention = build(name)
    q, k, v = random_inputs(position, HEADS, DIM)
    k = q if attention.config.shares_queries_and_keys else k
    _, state = jax.jit(lambda *x: attention.prefill(*x, max_length=position + 1))(q, k, v)
    step = jax.jit(attention.step)
    token = (q[:, :1], k[:, :1], v[:, :1])
    return lambda: step(*token, state), sum(x.nbytes for x in jax.tree.leaves(state))


def say(*words: Any) -> None:
    """Print at once: this takes minutes."""
    print(*words, flush=True)


def against_others(repeats: int) -> dict[str, Any]:
    """Measure ours and other people's code in turns, forward and backward."""
    ratios: dict[str, Any] = {}
    for length in (8192, 32_768):
        ours = {name: compiled(name, length, causal=True, backward=True)[0] for name in ("relu", "favor", "softmax")}
        torch = interop.torch_softmax(length, HEADS, DIM)
        calls = ours | ({} if torch is None else {"torch": torch})
        best = best_of(calls, repeats if length == 8192 else 1)
        say(f"causal, L = {length:,}, forward and backward:", {name: f"{t:.2f} s" for name, t in best.items()})
        exact = min(best["softmax"], best.get("torch", float("inf")))
        for name in ("relu", "favor"):
            key = "softmax" if name == "favor" else name
            ratios[f"causal_{key}_vs_torch_{length}"] = best["torch"] / best[name] if "torch" in best else None
            ratios[f"causal_{key}_vs_fastest_exact_{length}"] = exact / best[name]
        ratios[f"exact_softmax_vs_torch_{length}"] = best["torch"] / best["softmax"] if "torch" in best else None
        if length == 8192:
            ratios["causal_core_gflops"] = 45 / best["relu"]
    ours = {
        mode: compiled("relu", 8192, causal=mode == "causal", backward=True)[0] for mode in ("causal", "bidirectional")
    }
    # The causal path of theirs takes half a minute and gigabytes: last, and once.
    for mode, turns in (("bidirectional", 3 * repeats), ("causal", 0)):
        theirs = interop.performer_pytorch(8192, HEADS, DIM, FEATURES, causal=mode == "causal")
        best = best_of({"ours": ours[mode]} | ({} if theirs is None else {"theirs": theirs}), turns)
        say(f"{mode} ReLU, L = 8,192, ours and performer-pytorch:", {name: f"{t:.2f} s" for name, t in best.items()})
        key = f"{mode}_relu_vs_performer_pytorch_8192"
        ratios[key] = best["theirs"] / best["ours"] if "theirs" in best else None
    return ratios


def growth(repeats: int) -> dict[str, Any]:
    """Measure 16,384 over 8,192, and causal over bidirectional at 8,192, forward and backward."""
    ratios: dict[str, Any] = {"time_16k_over_8k": {}, "memory_16k_over_8k": {}, "causal_over_bidirectional_8192": {}}
    for name in LINEAR:
        has_causal = not MECHANISMS[name].no_causal
        short, long = (compiled(name, n, causal=has_causal, backward=True) for n in (8192, 16_384))
        both = compiled(name, 8192, causal=False, backward=True)[0]
        # A ratio near its bound: more samples than elsewhere, where they are cheap.
        best = best_of({"8k": short[0], "16k": long[0], "both": both}, 2 * repeats, limit_s=30.0)
        say(f"{name}:", {k: f"{t:.2f} s" for k, t in best.items()}, f"{short[1] >> 20} and {long[1] >> 20} MiB")
        ratios["time_16k_over_8k"][name] = best["16k"] / best["8k"]
        ratios["memory_16k_over_8k"][name] = long[1] / short[1]
        if has_causal:
            ratios["causal_over_bidirectional_8192"][name] = best["8k"] / best["both"]
    return ratios


def decode_growth(repeats: int) -> dict[str, Any]:
    """Measure one token at position 32,768 over one at 512: time, and bytes of the state."""
    ratios: dict[str, Any] = {"decode_32k_over_512": {}, "decode_state_32k_over_512": {}}
    for name in [*LINEAR, "softmax"]:
        if MECHANISMS[name].no_causal:
            continue
        early, late = (decoding(name, position) for position in (512, 32_768))
        best = best_of({"early": early[0], "late": late[0]}, repeats)
        say(f"{name}: one token", {k: f"{t * 1e3:.2f} ms" for k, t in best.items()}, f"state {late[1] / 1e6:.1f} MB")
        ratios["decode_32k_over_512"][name] = best["late"] / best["early"]
        ratios["decode_state_32k_over_512"][name] = late[1] / early[1]
    return ratios


def every_length(limit_s: float) -> list[dict[str, Any]]:
    """Measure each mechanism at 512 to 65,536; one is left where the next length would take more than `limit_s`."""
    rows = []
    for name in [*MECHANISMS, "torch"]:
        for backward in (False, True):
            taken, length = 0.0, 512
            factor = 4 if name in (*QUADRATIC, "torch") else 2
            while length <= LONGEST and factor * taken < limit_s:
                causal = name == "torch" or not MECHANISMS[name].no_causal
                if name == "torch":
                    call, used = interop.torch_softmax(length, HEADS, DIM, backward=backward), None
                    if call is None:
                        break
                else:
                    call, used = compiled(name, length, causal=causal, backward=backward)
                taken = best_of({name: call}, 3, limit_s=8.0)[name]
                row = {
                    "mechanism": name, "length": length, "causal": causal, "backward": backward,
                    "seconds": taken, "temporary_bytes": used,
                }  # fmt: skip
                rows.append(row)
                say(row)
                length *= 2
    return rows


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the bounded ratios alone")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best counts")
    parser.add_argument("--limit-s", type=float, default=120.0, help="skip lengths that would take longer than this")
    options = parser.parse_args()
    facts = machine()
    rate = matrix_product_rate()
    say(facts, f"float32 matrix products {rate:.0f} GFLOP/s")
    ratios = against_others(options.repeats)
    ratios |= growth(options.repeats) | decode_growth(50)
    ratios["matrix_product_gflops"] = rate
    ratios["causal_core_share"] = ratios["causal_core_gflops"] / rate
    if not options.quick:
        rows = every_length(options.limit_s)
        with open(HERE / "attention.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        (HERE / "attention.json").write_text(json.dumps({"machine": facts, "ratios": ratios}, indent=2) + "\n")
    say(json.dumps(ratios))


if __name__ == "__main__":
    main()
