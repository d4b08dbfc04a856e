"""Kernels of decode steps on a GPU, alone: `python -m benchmarks.decoding.kernels [--seconds S] [--only TEXT ...]
[--out FILE] [--keep STORE]`.

Attention of few rows over a cache (Gemma-3-270M, Llama-3.2-1B and 8B shapes), products with quantized weights
(`benchmarks.decoding.quantized_products`), and the kernels of a layer of Gemma-3-270M, of Llama-3.2-1B (`layer ...`)
and of other decoders (`decoder ...`; of several rows with quantized weights `rows ...`), with and without what can be
fused into them, each as a generated kernel of Triton and of CUDA C++. Every kernel's schedule search tries up to
`--schedules` schedules. Rows: the kernel, its best schedules (with `--all`, all of them) with µs in cold caches, µs of
its bytes at the device's bandwidth, failed schedules with their first message.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.backends.tuning.job_measuring import measure_jobs
from tensor_graphs.backends.tuning.jobs import job_of
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.costdb.keys.rates import GPU
from tensor_graphs.costdb.store import shards
from tensor_graphs.costdb.store.schema import checked
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.common import quantization

from .quantized_products import SHAPES

BEST = 4  # schedules of a row


def attention(
    groups: int, heads: int, head: int, room: int, *, norm: bool = False, rope: bool = False, window: int = 0,
    angles: bool = False,
) -> Tensor:  # fmt: skip
    """Attention of a decode step over a cache of `room` positions.

    `window`: the cache is a ring. `norm`: queries are normed and rotated (`rope`: rotated); with `angles`, the kernel
    computes the sines and cosines of the position itself.
    """
    q = t.input("q", (1, groups, heads, head))
    k, v = (t.input(name, (1, groups, room, head)) for name in "kv")
    if norm or rope:
        waves = tuple(t.input(name, (1, 1, 1, head)) for name in ("cos", "sin"))
        if angles:
            turn = t.cast(t.reshape(t.input("at", (1,), "int64"), (1, 1, 1, 1)), "float32") * waves[0]
            waves = t.cos(turn), t.sin(turn)
        q = c.rope(c.rms_norm(q, t.input("g", (head,)), eps=1e-6) if norm else q, *waves)
    mask = visible(t.reshape(t.input("at", (1,), "int64"), (1, 1, 1, 1)), room, window)
    return c.masked_attention(q, k, v, mask, scale=head**-0.5)


def writing_attention(
    groups: int, heads: int, head: int, room: int, *, norm: bool = False, window: int = 0, angles: bool = False
) -> list[Tensor]:
    """Attention of a decode step that writes the token's row into both caches, from queries, keys and values before
    their norms and rotation; parameters as of `attention`.
    """
    q, k, v = (t.input(name, (1, 1, n * groups * head)) for name, n in (("q", heads), ("k", 1), ("v", 1)))
    q, k, v = (t.reshape(x, (1, groups, -1, head)) for x in (q, k, v))
    at = t.reshape(t.input("at", (1,), "int64"), (1, 1, 1, 1))
    waves = tuple(t.input(name, (1, 1, 1, head)) for name in ("cos", "sin"))
    if angles:
        turn = t.cast(at, "float32") * waves[0]
        waves = t.cos(turn), t.sin(turn)
    q, k = (c.rope(normed(x, name) if norm else x, *waves) for x, name in ((q, "qg"), (k, "kg")))
    place = t.broadcast_to(t.mod(at, room), k.shape)
    caches = (t.input(name, (1, groups, room, head)) for name in ("keys", "values"))
    keys, values = (t.scatter_elements(cache, place, x, 2) for cache, x in zip(caches, (k, v)))
    mask = visible(at, room, window)
    return [c.masked_attention(q, keys, values, mask, scale=head**-0.5), keys, values]


def visible(own: Tensor, room: int, window: int) -> Tensor:
    """Additive mask of the positions that the token at position `own` sees."""
    held = t.iota((1, 1, 1, room), 3)
    if window:
        held = own - t.mod(own - held + room, room)
    hidden = t.gt(held, own)
    if window:
        hidden = t.logical_or(t.logical_or(hidden, t.le(held, own - window)), t.lt(held, 0))
    return t.where(hidden, t.full((1,) * 4, float("-inf")), t.full((1,) * 4, 0.0))


def product(shape: str, rows: int, form: str) -> Tensor:
    """Product of `rows` rows with a weight, quantized or bfloat16 (`form` "plain"), stored as [columns, size]."""
    columns, size = SHAPES[shape]
    x = t.input("x", (rows, size))
    if form == "plain":
        return t.matmul(x, t.transpose(t.input("w", (columns, size))))
    length = size if form in ("int8", "fp8") else size // 2
    codes = t.input("w", (columns, length), "int8" if form == "int8" else "uint8")
    scale = t.input("s", (columns, size // quantization.group_of(form, size)))
    return t.matmul(x, t.transpose(quantization.dequantized(form, codes, scale)))


def normed(x: Tensor, name: str) -> Tensor:
    """The RMS norm of rows with the gain `name`."""
    return c.rms_norm(x, t.input(name, x.shape[-1:]), eps=1e-6)


def stream(hidden: int, norms: int) -> Tensor:
    """A row of the residual stream after half a layer; `norms` = 2: the output of that half is normed before it is
    added.
    """
    x, y = t.input("x", (1, hidden)), t.input("y", (1, hidden))
    return x + (normed(y, "before") if norms > 1 else y)


def layer_product(hidden: int, columns: int, norms: int, activation: Callable[[Tensor], Tensor] | None = None, *,
                  stored: bool = False) -> list[Tensor]:  # fmt: skip
    """A product of one row of `hidden` elements in a layer, with what can be fused into it.

    `norms`: 0 multiplies an operand; 1 its norm; 2 and 3 the norm of the residual stream, whose last summand is normed
    (2) or not (3). `stored`: the residual stream is a second result. `activation`: that of a gated product with
    `columns` columns.
    """
    summed = stream(hidden, 2 if norms == 2 else 1) if norms > 1 else t.input("x", (1, hidden))
    x = normed(summed, "gain") if norms else summed
    gate, up = (t.matmul(x, t.transpose(t.input(name, (columns, hidden)))) for name in ("w", "v"))
    return [gate if activation is None else activation(gate) * up, *([summed] if stored else [])]


def layer_caches(heads: int, groups: int, head: int, room: int, *, norm: bool) -> list[Tensor]:
    """Of a layer's product of query, key and value: the rows that a decode step writes to the caches, and the
    queries.
    """
    widths = (groups * head, groups * head, heads * head)
    whole = t.input("x", (1, 1, sum(widths)))
    at = t.reshape(t.input("at", (1,), "int64"), (1, 1, 1, 1))
    k, v, q = (t.reshape(p, (1, groups, -1, head)) for p in t.split(whole, widths, -1))
    angles = t.cast(at, "float32") * t.input("waves", (1, 1, 1, head))
    waves = t.cos(angles), t.sin(angles)
    k, q = (c.rope(normed(p, name) if norm else p, *waves) for p, name in ((k, "kg"), (q, "qg")))
    caches = (t.input(name, (1, groups, room, head)) for name in ("keys", "values"))
    place = t.broadcast_to(t.mod(at, room), (1, groups, 1, head))
    return [*(t.scatter_elements(cache, place, x, 2) for cache, x in zip(caches, (k, v))), q]


@dataclass(frozen=True)
class Layer:
    """Sizes of a layer of a decoder.

    Columns of the residual stream (`hidden`) and of the gated product (`inner`), heads of queries of a group, groups,
    head size. `norms` = 2: the output of each half is normed before it is added. `norm`: queries and keys are normed.
    """

    hidden: int
    inner: int
    heads: int
    groups: int
    head: int
    act: Callable[[Tensor], Tensor]
    norms: int = 3
    norm: bool = False

    @property
    def qkv(self) -> int:
        """Columns of the product of queries, keys and values."""
        return (self.heads + 2) * self.groups * self.head

    @property
    def own(self) -> int:
        """Columns of the attention's result."""
        return self.heads * self.groups * self.head


#: The two decoders of the results, then others, from whose kernels prices may be learnt (`--only decoder`).
LAYERS = {
    "layer gemma": Layer(640, 2048, 4, 1, 256, c.gelu_tanh, norms=2, norm=True),
    "layer llama-1b": Layer(2048, 8192, 4, 8, 64, c.silu),
    "decoder qwen2-0.5b": Layer(896, 4864, 7, 2, 64, c.silu),
    "decoder qwen3-0.6b": Layer(1024, 3072, 2, 8, 128, c.silu, norm=True),
    "decoder smollm2-360m": Layer(960, 2560, 3, 5, 64, c.silu),
    "decoder gemma-2-2b": Layer(2304, 9216, 2, 4, 256, c.gelu_tanh, norms=2),
    "decoder llama-3.2-3b": Layer(3072, 8192, 3, 8, 128, c.silu),
    "decoder mistral-7b": Layer(4096, 14336, 4, 8, 128, c.silu),
}


def residual(product: list[Tensor]) -> list[Tensor]:
    """A product of one row with the residual stream added."""
    return [t.input("stream", product[0].shape) + product[0]]


def gated(one: Layer) -> list[Tensor]:
    """The down product of a gate and an up product that lie side by side."""
    both = t.input("x", (1, 2 * one.inner))
    gate, up = t.split(both, (one.inner, one.inner), -1)
    return [t.matmul(one.act(gate) * up, t.transpose(t.input("w", (one.hidden, one.inner))))]


def layers() -> dict[str, Callable[[], list[Tensor]]]:
    """Name -> builder of the roots of a kernel of a layer's decode step, with and without fusion."""
    found: dict[str, Callable[[], list[Tensor]]] = {}
    for name, one in LAYERS.items():
        n, h = one.norms, one.hidden
        found |= {
            f"{name} stream and norm": lambda h=h, n=n: [normed(s := stream(h, 2 if n == 2 else 1), "gain"), s],
            f"{name} qkv": lambda h=h, w=one.qkv: layer_product(h, w, 0),
            f"{name} norm qkv": lambda h=h, w=one.qkv: layer_product(h, w, 1),
            f"{name} stream norm qkv": lambda h=h, w=one.qkv, n=n: layer_product(h, w, n, stored=True),
            f"{name} gate-up": lambda h=h, w=one.inner, a=one.act: layer_product(h, w, 0, a),
            f"{name} stream norm gate-up": lambda h=h, w=one.inner, a=one.act, n=n: layer_product(
                h, w, n, a, stored=True
            ),
            f"{name} down": lambda h=h, w=one.inner: layer_product(w, h, 0),
            f"{name} o": lambda h=h, w=one.own: layer_product(w, h, 0),
            f"{name} caches": lambda o=one: layer_caches(
                o.heads * o.groups, o.groups, o.head, 768 if o.head == 256 else 1024, norm=o.norm
            ),
        }
        if name.startswith("decoder"):
            found |= {
                f"{name} both": lambda h=h, w=2 * one.inner: layer_product(h, w, 0),
                f"{name} norm both": lambda h=h, w=2 * one.inner: layer_product(h, w, 1),
                f"{name} norm gate-up": lambda h=h, w=one.inner, a=one.act: layer_product(h, w, 1, a),
                f"{name} gated down": lambda o=one: gated(o),
                f"{name} down, residual": lambda h=h, w=one.inner: residual(layer_product(w, h, 0)),
                f"{name} o, residual": lambda h=h, w=one.own: residual(layer_product(w, h, 0)),
                f"{name} head": lambda h=h: layer_product(h, 32000, 0),
                f"{name} attention": lambda o=one: attention(o.groups, o.heads, o.head, 896, norm=o.norm, rope=True),
                f"{name} attention, rows": lambda o=one: writing_attention(o.groups, o.heads, o.head, 896, norm=o.norm),
            }
    return found


CASES: dict[str, Callable[[], Tensor | list[Tensor]]] = {
    "gemma ring 768, norm": lambda: attention(1, 4, 256, 768, norm=True, window=512),
    "gemma ring 768, norm, angles": lambda: attention(1, 4, 256, 768, norm=True, window=512, angles=True),
    "gemma 1024, norm": lambda: attention(1, 4, 256, 1024, norm=True),
    "gemma ring 768": lambda: attention(1, 4, 256, 768, window=512),
    "gemma ring 768, norm, writes rows": lambda: writing_attention(1, 4, 256, 768, norm=True, window=512),
    "gemma ring 768, norm, angles, writes rows": lambda: writing_attention(1, 4, 256, 768, norm=True, window=512, angles=True),
    "llama-1b 1024, rope": lambda: attention(8, 4, 64, 1024, rope=True),
    "llama-1b 1024, rope, writes rows": lambda: writing_attention(8, 4, 64, 1024),
    "llama-1b 1024": lambda: attention(8, 4, 64, 1024),
    "llama-8b 1024": lambda: attention(8, 4, 128, 1024),
    "llama-8b 8192": lambda: attention(8, 4, 128, 8192),
    **{f"{shape} x {rows} {form}": lambda shape=shape, rows=rows, form=form: product(shape, rows, form)  # type: ignore[misc]
       for shape, rows, form in (
           ("8b-gate-up", 1, "int4"), ("8b-gate-up", 1, "fp8"), ("8b-gate-up", 1, "plain"), ("8b-down", 1, "int4"), ("8b-gate-up", 16, "int4"),
           ("8b-gate-up", 1, "int8"), ("8b-gate-up", 1, "mxfp4"), ("8b-o", 1, "int4"), ("8b-gate-up", 16, "fp8"),
           ("8b-qkv", 1, "int4"), ("8b-head", 1, "int4"), *((n, 1, "fp8") for n in ("8b-qkv", "8b-o", "8b-down", "8b-head")))},
    **layers(),
}  # fmt: skip


def call_of(template: GeneratedKernel) -> Call:
    """A call of a kernel over row-major bfloat16 operands; integer operands keep their dtype."""

    def place(n: Tensor) -> Operand:
        dtype = n.dtype if n.dtype in ("int64", "uint8", "int8") else "bfloat16"
        return Operand(Type(n.shape, dtype), contiguous(n.shape))  # type: ignore[arg-type]

    found = {str(n.attr("name")): place(n) for n in topological(template.roots) if n.op == "input"}
    first, *more = map(place, template.roots)
    return Call({o: found[o] for o in template.operands}, first, {}, more=tuple(more))


def kernels(*only: str) -> Iterator[tuple[str, str, GeneratedKernel, Call]]:
    """(case, backend, template, call) of every kernel that can be generated, of the cases that contain one of the
    texts."""
    from .row_kernels import CASES as OF_ROWS

    for name, make in {**CASES, **OF_ROWS}.items():
        if not any(text in name for text in only):
            continue
        for backend, emitter in (("nvrtc", CUDA.emitter), ("triton", TRITON.emitter)):
            template = template_of(emitter, make())
            call = call_of(template)
            if template.lower(call) is not None:
                yield name, backend, template, call


def bytes_of(call: Call) -> int:
    """Bytes of all operands and results of a call."""
    return sum(
        dtypes.itemsize(o.type.dtype) * prod(concrete(o.type.shape)) for o in (*call.operands.values(), *call.outputs)
    )


def figures(
    rows: Sequence[Mapping[str, Any]], template: GeneratedKernel, call: Call, best: int | None
) -> dict[str, Any]:
    """The best `best` schedules of a kernel (None: all) with their times, from rows of a store, and its failures."""
    wanted = key_of(template, call).columns
    same = [
        r
        for r in rows
        if all(r[n] == wanted[n] for n in ("kernel", "backend", "source", "shapes", "dtypes", "strides") if n in wanted)
    ]
    cold = sorted((r["median_us"], r["schedule"]) for r in same if r["kind"] == "timing" and r["regime"] == "cold")
    failed = [f"{r['schedule']}: {r['message'][:200]}" for r in same if r["kind"] == "failure"]
    return {"best": cold[:best], "tried": len(cold), "failed": len(failed), "failures": failed[:2]}


def stored(root: Path) -> list[dict[str, Any]]:
    """All rows in the shards under a folder."""
    return [row for shard in shards.find(root) for row in checked(shards.read(shard.path))[0].to_pylist()]


def main() -> None:
    """Measure all kernels, then print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0, help="no kernel is begun after so many seconds")
    parser.add_argument("--schedules", type=int, default=32)
    parser.add_argument("--only", nargs="*", default=[""], help="only cases whose names contain one of these texts")
    parser.add_argument("--all", action="store_true", help="print all schedules of a kernel")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="cost store that keeps the measured rows")
    options = parser.parse_args()
    begun, found = time.perf_counter(), list(kernels(*options.only))
    with nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory() as folder:
        left = options.seconds - (time.perf_counter() - begun)
        jobs = [job_of(template, call) for *_, template, call in found]
        outcome = measure_jobs(
            jobs, folder, schedules=options.schedules, seconds=left, say=lambda text: print(text, flush=True)
        )
        rows = stored(Path(folder))
    print(f"{outcome.measured} of {len(found)} kernels in {time.perf_counter() - begun:.0f} s; {dict(outcome.bad)}")
    listed = [
        {
            "case": name,
            "backend": backend,
            "limit_us": bytes_of(call) / GPU.bytes_per_us,
            **figures(rows, template, call, None if options.all else BEST),
        }
        for name, backend, template, call in found
    ]
    for row in listed:
        print(json.dumps(row))
    if options.out is not None:
        options.out.write_text(json.dumps(listed, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
