"""FLOPs of a traced function: its matrix products, with each loop counted as often as it runs.

XLA's own cost analysis counts the body of a loop once, whether the loop is over 36 layers or 128 chunks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Work:
    """The work of a function, on all devices together.

    Attributes:
        flops: FLOPs of matrix products, two for each multiplication with addition; nothing else is counted.
        product_bytes: bytes of the operands and results of these products, each read or written once. Without fusion
            the function moves at least these.
        unknown_loops: number of loops whose length is unknown before they run; the body is counted once. A loop of
            unknown length inside a loop of n is not among them: it counts as triangular, n (n - 1) / 2 runs in all.
    """

    flops: int = 0
    product_bytes: int = 0
    unknown_loops: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.flops + other.flops,
            self.product_bytes + other.product_bytes,
            self.unknown_loops + other.unknown_loops,
        )

    def times(self, number: int) -> "Work":
        """Return the work of `number` repetitions."""
        return Work(self.flops * number, self.product_bytes * number, self.unknown_loops)

    def resolved(self) -> "Work":
        """Return the work without its count of unknown loops."""
        return Work(self.flops, self.product_bytes)


def work_of(function: Callable[..., Any], *arguments: Any) -> Work:
    """Trace a function on arguments (arrays or ShapeDtypeStructs) and count its work, without compiling it."""
    known, unknown = _work(jax.make_jaxpr(function)(*arguments).jaxpr)
    return known + unknown


def _work(jaxpr: Any) -> tuple[Work, Work]:
    """Return (known work, work of one iteration of loops of unknown length, which an enclosing loop resolves)."""
    known, unknown = Work(), Work()
    for equation in jaxpr.eqns:
        name, inside = equation.primitive.name, [_work(inner) for inner in _inner(equation.params)]
        if name == "dot_general":
            known += _product(equation)
            continue
        if name == "cond":
            inside = [max(inside, key=lambda branch: branch[0].flops + branch[1].flops)]
        once, loops = (sum(part, Work()) for part in (zip(*inside, strict=True) if inside else ((), ())))
        if name == "while":
            once, loops = Work(), once + loops + Work(unknown_loops=1)
        elif name == "scan":
            # The inner loop of causal exact attention is over the blocks before (or after) each: n (n - 1) / 2 runs.
            length = equation.params["length"]
            once, loops = once.times(length) + loops.times(length * (length - 1) // 2).resolved(), Work()
        elif name == "shard_map":
            # The body of a shard_map is the work of one device.
            once, loops = (part.times(equation.params["mesh"].size) for part in (once, loops))
        known, unknown = known + once, unknown + loops
    return known, unknown


def _inner(parameters: dict[str, Any]) -> list[Any]:
    """Return the jaxprs among an equation's parameters."""
    jaxprs = []
    for value in parameters.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            item = getattr(item, "jaxpr", item)
            if hasattr(item, "eqns"):
                jaxprs.append(item)
    return jaxprs


def _product(equation: Any) -> Work:
    left, right = (variable.aval for variable in equation.invars[:2])
    result = equation.outvars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    depth = math.prod(left.shape[axis] for axis in contracted)
    moved = sum(aval.size * aval.dtype.itemsize for aval in (left, right, result))
    return Work(2 * result.size * depth, moved)
