"""A GPU's memory-efficient attention on the CPU, for tests of graphs that contain it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

PADDED = 32  # the rows of the logsumexp are a multiple of this


def _scores(q: Any, k: Any, bias: Any, causal: bool, scale: float | None) -> Any:
    scores = (q @ k.transpose(-1, -2)) * (scale or q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores if bias is None else scores + bias


def _laid_out(x: Any) -> Any:
    """The values in the GPU operators' memory layout: heads between rows and columns."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _forward(
    q: Any, k: Any, v: Any, bias: Any, statistics: bool, dropout: float = 0.0, causal: bool = False, *, scale: float | None = None
) -> Any:  # fmt: skip
    scores = _scores(q, k, bias, causal, scale)
    lse = torch.logsumexp(scores.float(), -1)
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % PADDED), value=math.inf) if statistics else lse[..., :0]
    seeds = [torch.empty((), dtype=torch.int32) for _ in range(2)]  # unlike the traced ones, as on a GPU
    return _laid_out(scores.softmax(-1) @ v), lse, *seeds


def _backward(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, lse: Any, seed: Any, offset: Any, dropout: float, needed: Any,
    causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    p = torch.exp(_scores(q, k, bias, causal, scale) - lse[..., : q.shape[-2], None])
    ds = p * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
    by_scale = ds * (scale or q.shape[-1] ** -0.5)
    found = by_scale @ k, by_scale.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad
    # FlashAttention's are laid out as the operands are; with traced operands, in the traced layout
    return *(torch.empty_like(x).copy_(g) for x, g in zip((q, k, v), found)), None if bias is None else ds


@contextmanager
def on_cpu() -> Iterator[None]:
    """Context manager in which `scaled_dot_product_attention` is the GPU's memory-efficient operator on the CPU."""

    def attention(
        q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False
    ) -> Any:
        statistics = torch.is_grad_enabled()
        operator = torch.ops.aten._scaled_dot_product_efficient_attention
        return operator(q, k, v, attn_mask, statistics, dropout_p, is_causal)[0]

    with (
        torch.library._scoped_library("aten", "IMPL") as library,
        mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", attention),
    ):
        library.impl("_scaled_dot_product_efficient_attention", _forward, "CPU")
        library.impl("_scaled_dot_product_efficient_attention_backward", _backward, "CPU")
        yield
