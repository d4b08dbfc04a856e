"""One emitted program for each class of generated kernels and each emitter, with its operands and what it must give:
what sanitizer.py runs. Writing them needs neither a GPU nor a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.ir.precision import IEEE, PRECISIONS
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.triton import backend as triton
from tensor_graphs.backends.tuning.single_kernel import kernel_plan
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dtypes import is_float, numpy_dtype
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.meaning import output_terms

EMITTERS = {"triton": triton.BACKEND.emitter, "cuda": cuda_cpp.BACKEND.emitter}
FORMS = 5  # kernels of a class that are written with one emitter
ROWS = 9  # rows of the table that indices read
BITS = ("split", "join", "boxes", "roles", "tiles", "inside", "walk", "ahead", "parts", "turns", "across", "down", "x")
"""Schedule parameters whose presence and value above 1 (or 1, if there is no other) select another form of a kernel."""


def x(name: str, *shape: int) -> Tensor:
    """An input."""
    return t.input(name, shape)


def _heads(name: str, heads: int, group: int, length: int, width: int) -> Tensor:
    """Key or value heads, each repeated for a group of query heads."""
    own = t.reshape(x(name, 1, heads, length, width), (1, heads, 1, length, width))
    return t.reshape(t.broadcast_to(own, (1, heads, group, length, width)), (1, heads * group, length, width))


def _naive_attention() -> Tensor:
    q, k, v = (x(n, 2, 160, 64) for n in "qkv")
    seen = t.reshape(t.le(t.iota((160, 160), 1), t.iota((160, 160), 0)), (1, 160, 160))
    scores = t.matmul(c.rms_norm(q, x("g", 64), eps=1e-6), t.transpose(k)) * 0.125
    return t.matmul(c.softmax(t.where(seen, scores, t.full((1, 1, 1), float("-inf"))), axis=2), v)


def _conv(last: bool) -> Tensor:
    """Two images, and what is added to each channel; `last`: channels lie innermost."""
    image = t.permute(x("a", 2, 16, 16, 64), (0, 3, 1, 2)) if last else x("a", 2, 64, 15, 15)
    y = t.conv(image, x("w", 96, 64, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
    return c.relu(y + x("b", 1, 96, 1, 1))


def _depthwise() -> Tensor:
    y = t.conv(x("a", 2, 16, 17, 19), x("w", 16, 1, 3, 3), strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), groups=16)
    return y + x("b", 1, 16, 1, 1)


def _pool() -> Tensor:
    return c.max_pool(x("a", 2, 8, 17, 17), kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1))


def _mlp() -> Tensor:
    hidden = c.gelu(t.matmul(c.layer_norm(x("a", 48, 64), x("g", 64), x("b", 64), eps=1e-5), x("u", 64, 256)))
    return t.matmul(hidden, x("d", 256, 64))


def _residual() -> list[Tensor]:
    total = x("a", 37, 300) + x("r", 37, 300)
    return [total, c.rms_norm(total, x("g", 300), eps=1e-6)]


def _cache() -> Tensor:
    return t.scatter_elements(x("k", ROWS, 96), t.input("i", (1, 96), "int64"), c.silu(x("a", 1, 96)), 0)


def _added(rows: int, width: int) -> Tensor:
    """Rows added to those of zeros that indices name."""
    spot = t.broadcast_to(t.input("i", (rows, 1), "int64"), (rows, width))
    return t.scatter_elements(t.zeros((ROWS, width)), spot, x("a", rows, width) * 2.0, 0, "add")


@dataclass(frozen=True)
class Class:
    """A class of kernels: its term or terms, which weights are laid out anew, the dtype of floats in memory, and the
    precision of products."""

    term: Callable[[], Tensor | list[Tensor]]
    laid_out: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    precision: str = IEEE.name


CLASSES: dict[str, Class] = {
    "pointwise": Class(lambda: c.gelu(x("a", 61, 200)) * x("b", 200)),
    "pointwise, odd": Class(lambda: t.exp(x("a", 5, 37)) + x("b", 37), dtype="float32"),
    "transposed": Class(lambda: t.permute(x("a", 70, 90), (1, 0)) + x("b", 90, 70)),
    "joined": Class(lambda: t.concat([x("a", 7, 24), x("b", 7, 40)], 1) * 2.0),
    "padded": Class(lambda: t.pad(x("a", 6, 21), [(1, 2), (3, 8)], 0.5) + 1.0),
    "gathered": Class(lambda: t.gather(x("table", ROWS, 96), t.input("i", (50,), "int64"), 0) * 2.0),
    "written into": Class(_cache),
    "softmax": Class(lambda: c.softmax(x("a", 37, 300) * 0.5, axis=1)),
    "softmax of long rows": Class(lambda: c.softmax(x("a", 3, 40_000), axis=1), dtype="float16"),
    "layer norm": Class(lambda: c.layer_norm(x("a", 20, 768), x("g", 768), x("b", 768), eps=1e-5)),
    "residual and norm": Class(_residual),
    "norm, turned": Class(lambda: t.permute(c.rms_norm(x("a", 2, 48, 96), x("g", 96), eps=1e-6), (0, 2, 1))),
    "sum of columns": Class(lambda: t.sum(x("a", 1030, 72), axis=0, keepdims=True), dtype="float32"),
    "sum of all": Class(lambda: t.sum(x("a", 64, 24, 32), axis=(0, 2), keepdims=True)),
    "largest of rows": Class(lambda: t.max(x("a", 7, 330), axis=1, keepdims=True)),
    "matrix and vector": Class(lambda: t.matmul(c.rms_norm(x("a", 1, 512), x("g", 512), eps=1e-6), x("w", 512, 384))),
    "gated, one row": Class(lambda: c.silu(t.matmul(x("a", 1, 512), x("v", 512, 200))) * t.matmul(x("a", 1, 512), x("w", 512, 200))),
    "low rank, one row": Class(lambda: t.matmul(x("a", 1, 256), x("w", 256, 128)) + t.matmul(t.matmul(x("a", 1, 256), x("u", 256, 16)), x("v", 16, 128))),
    "product": Class(lambda: c.gelu(t.matmul(x("a", 256, 192), x("w", 192, 256)) + x("b", 256)) + x("r", 256, 256)),
    "product, odd": Class(lambda: t.matmul(x("a", 200, 128), x("w", 128, 147)) + x("b", 147), laid_out=("w",)),
    "product, batched": Class(lambda: t.matmul(x("a", 3, 130, 64), x("w", 3, 64, 136))),
    "product, few rows": Class(lambda: t.matmul(c.rms_norm(x("a", 16, 512), x("g", 512), eps=1e-6), x("w", 512, 256))),
    "product, gated": Class(lambda: c.silu(t.matmul(x("a", 128, 128), x("v", 128, 128))) * t.matmul(x("a", 128, 128), x("w", 128, 128))),
    "product of float32": Class(lambda: t.matmul(x("a", 130, 96), x("w", 96, 70)) + x("b", 70), dtype="float32"),
    "product of float32, rounded": Class(lambda: t.matmul(x("a", 256, 192), x("w", 192, 128)), dtype="float32", precision="tf32x3"),
    "product after product": Class(_mlp),
    "attention": Class(lambda: c.attention(*(x(n, 1, 16, 512, 64) for n in "qkv"), scale=0.125, causal=True)),
    "attention, odd": Class(lambda: c.attention(x("q", 2, 150, 64), x("k", 2, 190, 64), x("v", 2, 190, 64), scale=0.125)),
    "attention, as written": Class(_naive_attention),
    "attention, one query": Class(lambda: c.attention(x("q", 1, 8, 1, 64), _heads("k", 2, 4, 512, 64), _heads("v", 2, 4, 512, 64), scale=0.125)),
    "convolution": Class(lambda: _conv(False), laid_out=("w",)),
    "convolution, channels innermost": Class(lambda: _conv(True), laid_out=("w",)),
    "depthwise convolution": Class(_depthwise),
    "pool": Class(_pool),
    "running sums": Class(lambda: t.exp(t.cumsum(x("a", 5, 700) * 0.1, 1)) + x("b", 700), dtype="float32"),
    "sums into few elements": Class(lambda: _added(3000, 1), dtype="float32"),
    "sums into rows": Class(lambda: _added(500, 40), dtype="float32"),
    "group norm": Class(lambda: c.silu(c.group_norm(x("a", 2, 24, 9, 11), x("g", 24), x("b", 24), groups=4, eps=1e-5))),
    "sums of gathered rows": Class(lambda: t.sum(t.gather(x("table", ROWS, 72), t.input("i", (30, 7), "int64"), 0), axis=1)),
}  # fmt: skip


def call_of(template: GeneratedKernel, dtype: str) -> Call:
    """A call over row-major operands."""
    kinds = {str(n.attr("name")): n for root in template.roots for n in topological([root]) if n.op == "input"}

    def operand(node: Tensor) -> Operand:
        shape = tuple(map(int, node.shape))
        return Operand(Type(shape, dtype if is_float(node.dtype) else node.dtype), contiguous(shape))

    out, *more = map(operand, template.roots)
    return Call({o: operand(kinds[o]) for o in template.operands}, out, {}, more=tuple(more))


def forms(template: GeneratedKernel, call: Call) -> Iterator[Call]:
    """The call in the best guess of each form that its schedules have, the first few."""
    seen: set[frozenset[Any]] = set()
    for schedule in template.space(call) if template.space is not None else ():
        form = frozenset((bit, schedule[bit] > 1) for bit in BITS if schedule.get(bit))
        if form not in seen and len(seen) < FORMS:
            seen.add(form)
            yield replace(call, schedule=dict(schedule))


def programs(name: str, emitter: str) -> Iterator[tuple[GeneratedKernel, Call]]:
    """A class's kernels in one emitter; none where it leaves the class to others."""
    found = CLASSES[name]
    precision = {p.name: p for p in PRECISIONS}[found.precision]
    template = template_of(EMITTERS[emitter], found.term(), found.laid_out, precision=precision)
    call = call_of(template, found.dtype)
    if template.lower(call) is not None:
        yield from ((template, one) for one in forms(template, call))


def operands(call: Call) -> dict[str, np.ndarray[Any, Any]]:
    """Random values; indices are rows of what is indexed."""
    rng = np.random.default_rng(0)
    found = {}
    for name, o in call.operands.items():
        shape = tuple(map(int, o.type.shape))
        values = rng.standard_normal(shape) if is_float(o.type.dtype) else rng.integers(0, ROWS, shape)
        found[name] = (values / (8.0 if name in "uvwd" and len(shape) > 1 else 1)).astype(numpy_dtype(o.type.dtype))
    return found


def wanted(
    template: GeneratedKernel, call: Call, given: Mapping[str, np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Every output in float64."""
    roots = output_terms(template, call)
    leaves = {str(n.attr("name")): n.dtype for n in topological(roots) if n.op == "param"}
    params = {n: given[n].astype(numpy_dtype(d)) for n, d in leaves.items()}
    return evaluate(roots, {}, params=params, float64=True)


def write(folder: Path, *only: str) -> dict[str, list[str]]:
    """A saved program for each form of each class in each emitter, `EMITTER.NUMBER.FORM/`, with `want.safetensors`
    beside it; by "class (emitter)" the names of those folders. `only`: parts of the names of these (default: all)."""
    found: dict[str, list[str]] = {}
    for number, name in enumerate(CLASSES):
        for emitter in EMITTERS:
            if only and not any(part in f"{name} ({emitter})" for part in only):
                continue
            for form, (template, call) in enumerate(programs(name, emitter)):
                target, given = folder / f"{emitter}.{number}.{form}", operands(call)
                Program(kernel_plan(template, call), given).save(target)
                outputs = {f"{i:02}": np.ascontiguousarray(w) for i, w in enumerate(wanted(template, call, given))}
                save_file(outputs, target / "want.safetensors")
                if any(n.op == "scatter_elements" and n.attr("mode") == "add" for n in topological(template.roots)):
                    (target / "any_order").touch()
                found.setdefault(f"{name} ({emitter})", []).append(target.name)
    return found
