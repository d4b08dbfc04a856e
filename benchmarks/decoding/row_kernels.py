"""Kernels of decode steps of several rows with quantized weights, alone: cases of `benchmarks.decoding.kernels`
(`--only "rows"`).

Names are `rows R FORM DECODER KERNEL`: products of R rows, with and without the norm, activation or residual sum that
can be fused into them, attention over the caches of R sequences with and without their new rows, and the kernel that
writes these rows. From their times, prices of other decoders may be learnt (decision 36).
"""

from __future__ import annotations

from collections.abc import Callable

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.models.common import quantization

from .kernels import LAYERS, Layer, normed, visible

ROWS = (16, 4)
FORMS = {"int4": 2, "fp8": 1}  # numbers of a byte
DECODERS = ("decoder llama-3.2-3b", "decoder gemma-2-2b", "decoder qwen3-0.6b")
ROOM = 896  # positions of a cache
Case = Callable[[], Tensor | list[Tensor]]


def weight(name: str, columns: int, size: int, form: str) -> Tensor:
    """A quantized weight, transposed: [size, columns]."""
    codes = t.input(name, (columns, size // FORMS[form]), "uint8")
    scale = t.input(f"{name}s", (columns, size // quantization.group_of(form, size)))
    return t.transpose(quantization.dequantized(form, codes, scale))


def product(rows: int, columns: int, size: int, form: str, *, norm: bool = False, residual: bool = False) -> Tensor:
    """A product of `rows` rows, perhaps of their norm, and perhaps added to the residual stream."""
    x = t.input("x", (rows, 1, size))
    found = t.matmul(normed(x, "gain") if norm else x, weight("w", columns, size, form))
    return t.input("stream", found.shape) + found if residual else found


def gated(rows: int, one: Layer, form: str, *, norm: bool = False) -> Tensor:
    """The gate and up products and their activation."""
    x = t.input("x", (rows, 1, one.hidden))
    x = normed(x, "gain") if norm else x
    return one.act(t.matmul(x, weight("g", one.inner, one.hidden, form))) * t.matmul(
        x, weight("u", one.inner, one.hidden, form)
    )


def attention(rows: int, one: Layer, *, writes: bool, attends: bool = True) -> list[Tensor]:
    """Attention of one token of each sequence, with the rotation of its query; `writes`: its rotated key and its value
    are written to the caches as well, or that alone without `attends`."""
    q, k, v = (
        t.input(name, (rows, 1, n * one.groups * one.head)) for name, n in (("q", one.heads), ("k", 1), ("v", 1))
    )
    q, k, v = (t.reshape(x, (rows, one.groups, -1, one.head)) for x in (q, k, v))
    at = t.reshape(t.input("at", (rows,), "int64"), (rows, 1, 1, 1))
    waves = tuple(t.input(name, (rows, 1, 1, one.head)) for name in ("cos", "sin"))
    q, k = (c.rope(normed(x, name) if one.norm else x, *waves) for x, name in ((q, "qg"), (k, "kg")))
    keys, values = (t.input(name, (rows, one.groups, ROOM, one.head)) for name in ("keys", "values"))
    if writes:
        place = t.broadcast_to(t.mod(at, ROOM), k.shape)
        keys, values = (t.scatter_elements(cache, place, x, 2) for cache, x in ((keys, k), (values, v)))
    found = c.masked_attention(q, keys, values, visible(at, ROOM, 0), scale=one.head**-0.5)
    return [*([found] if attends else []), *([keys, values] if writes else [])]


def _of(name: str, one: Layer, rows: int, form: str) -> dict[str, Case]:
    h, inner = one.hidden, one.inner
    return {
        f"{name} qkv": lambda: product(rows, one.qkv, h, form),
        f"{name} norm qkv": lambda: product(rows, one.qkv, h, form, norm=True),
        f"{name} o": lambda: product(rows, h, one.own, form),
        f"{name} o, residual": lambda: product(rows, h, one.own, form, residual=True),
        f"{name} gate": lambda: product(rows, inner, h, form),
        f"{name} gate-up": lambda: gated(rows, one, form),
        f"{name} norm gate-up": lambda: gated(rows, one, form, norm=True),
        f"{name} down": lambda: product(rows, h, inner, form),
        f"{name} down, residual": lambda: product(rows, h, inner, form, residual=True),
        f"{name} head": lambda: product(rows, 32000, h, form),
    }


def _of_caches(name: str, one: Layer, rows: int) -> dict[str, Case]:
    return {
        f"{name} attention": lambda: attention(rows, one, writes=False),
        f"{name} attention, rows": lambda: attention(rows, one, writes=True),
        f"{name} caches": lambda: attention(rows, one, writes=True, attends=False),
        f"{name} one cache": lambda: attention(rows, one, writes=True, attends=False)[:1],
    }


CASES: dict[str, Case] = {
    name: case
    for decoder in DECODERS for rows in ROWS for own in (
        *(_of(f"rows {rows} {form} {decoder}", LAYERS[decoder], rows, form) for form in FORMS),
        _of_caches(f"rows {rows} {decoder}", LAYERS[decoder], rows),
    ) for name, case in own.items()
}  # fmt: skip

__all__ = ["CASES"]
