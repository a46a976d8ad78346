"""Other people's attention, called as they would call it; None where the package is not installed."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any


def torch_softmax(length: int, heads: int, dim: int, *, backward: bool = True) -> Callable[[], Any] | None:
    """Return a call of torch's scaled_dot_product_attention, causal, and its backward pass."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    q, k, v = (torch.randn(1, heads, length, dim, requires_grad=backward) for _ in range(3))

    def call() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if backward:
            (out**2).sum().backward()

    return call


def performer_pytorch(
    length: int, heads: int, dim: int, num_features: int, *, causal: bool
) -> Callable[[], Any] | None:
    """Return a call of performer-pytorch's ReLU attention and its backward pass; causal without its CUDA code."""
    if importlib.util.find_spec("performer_pytorch") is None:
        return None
    import torch
    from performer_pytorch import FastAttention

    torch.set_num_threads(os.cpu_count() or 1)
    attention = FastAttention(dim, num_features, causal=causal, generalized_attention=True)
    q, k, v = (torch.randn(1, heads, length, dim, requires_grad=True) for _ in range(3))

    def call() -> None:
        (attention(q, k, v) ** 2).sum().backward()

    return call
