"""Draws random legal calls of a template (a kernel's pattern and code) for the tests that run every kernel of every
backend: operand shapes are inferred backwards from a random output shape."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensor_graphs.egraph.builders.leaf_builders import param
from tensor_graphs.egraph.ops.law_text import GATES
from tensor_graphs.egraph.ops.laws_contraction import conv_size
from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.egraph.patterns import pattern
from tensor_graphs.egraph.patterns.pattern_attrs import AttrConstant, Fact, Name, holds
from tensor_graphs.egraph.types.dtypes import is_float
from tensor_graphs.errors import ShapeError
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous

Shape = tuple[int, ...]
_FLOATS = {"eps": 1e-5, "alpha": 0.1, "beta": 0.4, "lo": -0.5, "hi": 0.75, "scale": 0.3, "value": 1.5}
"""Values of float attributes by their variable in a pattern; others have the op's default, or 0.5 without one."""


class Retry(Exception):
    """Raised when the shapes drawn so far contradict each other; `sample` then draws again."""


@dataclass
class _Draw:
    rng: random.Random
    dtype: str
    types: dict[str, Type] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)

    # ------------------------------------------------------------ choices
    def size(self) -> int:
        return self.rng.choice((2, 3, 4, 6))

    def shape(self, low: int, high: int) -> Shape:
        return tuple(self.size() for _ in range(self.rng.randint(low, high)))

    def give(self, call: pattern.PatternCall, name: str, value: Any) -> Any:
        """The attribute's value: the pattern's literal, the value already bound, or `value`, which is then bound."""
        spelled = dict(call.attrs)[name]
        if isinstance(spelled, AttrConstant):
            value = spelled.value
        elif isinstance(spelled, Name):
            value = self.attrs.setdefault(spelled.name, value)
        return value

    # ------------------------------------------------------------ inference backwards through one op
    def want(self, term: pattern.Term, kind: Type) -> None:
        """Choose operands and attributes so that the term has this type."""
        if isinstance(term, pattern.Literal):
            return
        if isinstance(term, pattern.Var):
            if self.types.setdefault(term.name, kind) != kind:
                raise Retry
            return
        rule = _RULES.get(OPS[term.op].law)
        if rule is None:
            raise Retry
        for argument, wanted in zip(term.args, rule(self, term, kind)):
            self.want(argument, wanted)

    def narrowed(self, term: pattern.Term, shape: Shape) -> Shape:
        """The shape with some axes of size 1, for an operand that may broadcast."""
        if (
            isinstance(term, pattern.PatternCall) and term.op == "reshape"
        ):  # a vector along the last axis or the channels
            axis = self.rng.choice((-1, 1)) % len(shape)
            return tuple(d if i == axis else 1 for i, d in enumerate(shape))
        if not isinstance(term, pattern.Var) or self.rng.random() < 0.6:
            return shape
        return tuple(1 if self.rng.random() < 0.4 else d for d in shape)

    def axis(self, call: pattern.PatternCall, rank: int, name: str = "axis") -> int:
        found = self.give(call, name, self.rng.randrange(rank) if rank else 0)
        if not 0 <= found < rank:
            raise Retry
        return int(found)


Rule = Callable[[_Draw, pattern.PatternCall, Type], "list[Type]"]


def _replace(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _ints(kind: Type) -> Shape:
    return tuple(kind.shape)  # type: ignore[arg-type]


def _pointwise(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    full = s.rng.randrange(len(call.args))
    calls = [i for i, a in enumerate(call.args) if isinstance(a, pattern.PatternCall) and a.op != "reshape"]
    full = calls[0] if calls else full
    shapes = [_ints(kind) if i == full else s.narrowed(a, _ints(kind)) for i, a in enumerate(call.args)]
    return [Type(shape, kind.dtype) for shape in shapes]


def _compare(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.dtype != "bool":
        raise Retry
    return _pointwise(s, call, Type(kind.shape, "bool" if call.op == "not" else s.dtype))


def _where(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    c, x, y = _pointwise(s, call, kind)
    return [Type(c.shape, "bool"), x, y]


def _cast(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if s.give(call, "dtype", kind.dtype) != kind.dtype:
        raise Retry
    return [Type(kind.shape, s.rng.choice(("float32", "float64", "int64", "int32", "bool", "float16", "bfloat16")))]


def _from_float8(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if s.give(call, "dtype", kind.dtype) != kind.dtype or not is_float(kind.dtype):
        raise Retry
    return [Type(kind.shape, "uint8")]


def _unpack(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if s.give(call, "dtype", kind.dtype) != kind.dtype or not is_float(kind.dtype):
        raise Retry
    bits, axis = s.give(call, "bits", s.rng.choice((2, 4))), s.axis(call, kind.rank)
    s.give(call, "form", s.rng.choice(("unsigned", "signed")))
    block = s.give(call, "block", s.rng.choice((1, 1, 2)))
    size = _ints(kind)[axis]
    if size % (8 // bits * block):
        raise Retry
    return [Type(_replace(_ints(kind), axis, size * bits // 8), "uint8")]


def _dequantize(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if not is_float(kind.dtype):
        raise Retry
    scales = tuple(s.rng.choice([d for d in range(1, n + 1) if n % d == 0]) for n in _ints(kind))
    zeros = scales if s.rng.random() < 0.5 else (1,) * kind.rank
    return [Type(kind.shape, s.rng.choice(("int8", kind.dtype))), Type(scales, kind.dtype), Type(zeros, kind.dtype)]


def _quantize(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.dtype not in ("uint8", "int8"):
        raise Retry
    scales = tuple(s.rng.choice((1, n)) for n in _ints(kind))
    zeros = scales if s.rng.random() < 0.5 else (1,) * kind.rank
    return [Type(kind.shape, s.dtype), Type(scales, s.dtype), Type(zeros, kind.dtype)]


def _integer_conv(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.dtype != "int32":
        raise Retry
    x, w = (Type(t.shape, s.rng.choice(("uint8", "int8"))) for t in _conv(s, call, kind))
    channels = (s.rng.choice((1, _ints(w)[0])), *(1,) * (w.rank - 1))
    return [x, w, Type((1,) * x.rank, x.dtype), Type(channels, w.dtype)]


def _integer_matmul(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.dtype != "int32":
        raise Retry
    x, w = (Type(t.shape, s.rng.choice(("uint8", "int8"))) for t in _matmul(s, call, kind))
    columns = (*(1,) * (w.rank - 1), s.rng.choice((1, _ints(w)[-1])))
    return [x, w, Type((1,) * x.rank, x.dtype), Type(columns, w.dtype)]


def _reduce(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = _ints(kind)
    ones = [i for i, d in enumerate(shape) if d == 1]
    axes = s.give(call, "axes", tuple(ones))
    for axis in axes:
        shape = _replace(shape, axis, s.size())
    return [Type(shape, kind.dtype)]


def _arg_reduce(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    axis = s.axis(call, kind.rank)
    if kind.dtype != "int64" or kind.shape[axis] != 1:
        raise Retry
    return [Type(_replace(_ints(kind), axis, s.size()), s.dtype)]


def _along(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    s.axis(call, kind.rank)
    return [kind]


def _along_index(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    s.give(call, "descending", s.rng.random() < 0.5)
    return [Type(_along(s, call, kind)[0].shape, s.dtype)]


def _matmul(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    *batch, m, n = _ints(kind) if kind.rank >= 2 else _fail()
    k = s.size()
    matrix = s.rng.random() < 0.5
    return [Type((*batch, m, k), kind.dtype), Type((k, n) if matrix else (*batch, k, n), kind.dtype)]


def _fail() -> Any:
    raise Retry


def _linear(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    *rows, n = _ints(kind) if kind.rank >= 2 else _fail()
    k = s.size()
    return [Type((*rows, k), kind.dtype), Type((k, n), kind.dtype), Type((n,), kind.dtype)]


def _window(s: _Draw, call: pattern.PatternCall, n: int) -> tuple[Shape, Shape, Shape, Shape]:
    """Random (kernel sizes, strides, pads, dilations) of n spatial axes."""

    def pick(*options: int) -> Shape:
        return tuple(s.rng.choice(options) for _ in range(n))

    kernel = (
        tuple(s.give(call, "kernel", pick(1, 2, 3))) if "kernel" in OPS[call.op].attrs else (s.rng.choice((1, 3)),) * n
    )
    low = tuple(s.rng.randint(0, k // 2) for k in kernel)
    pads = low + (low if s.rng.random() < 0.8 else tuple(s.rng.randint(0, k // 2) for k in kernel))
    strides = s.give(call, "strides", pick(1, 1, 2))
    return kernel, strides, s.give(call, "pads", pads), s.give(call, "dilations", pick(1, 1, 2))


def _input_space(space: Shape, kernel: Shape, strides: Shape, pads: Shape, dilations: Shape) -> Shape:
    n = len(space)
    found = tuple(
        (space[i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - pads[i] - pads[n + i] for i in range(n)
    )
    if min(found) < 1:
        raise Retry
    return found


def _conv(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.rank not in (3, 4):
        raise Retry
    n, o, *space = _ints(kind)
    groups = s.give(call, "groups", s.rng.choice((1, 1, 2)))
    if o % groups:
        raise Retry
    window = _window(s, call, len(space))
    inner, per_group = _input_space(tuple(space), *window), s.rng.choice((1, 2, 3))
    return [Type((n, per_group * groups, *inner), kind.dtype), Type((o, per_group, *window[0]), kind.dtype)]


def _pool(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.rank not in (3, 4):
        raise Retry
    n, c, *space = _ints(kind)
    return [Type((n, c, *_input_space(tuple(space), *_window(s, call, len(space)))), kind.dtype)]


def _reshape(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = _ints(kind)
    if s.give(call, "shape", shape) != shape:
        raise Retry
    total = 1
    for d in shape:
        total *= d
    squeezed = tuple(d for d in shape if d != 1)
    return [Type(s.rng.choice(((total,), squeezed, squeezed, squeezed[::-1])), kind.dtype)]


def _permute(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    perm = s.give(call, "perm", tuple(s.rng.sample(range(kind.rank), kind.rank)))
    if len(perm) != kind.rank:
        raise Retry
    return [Type(tuple(kind.shape[list(perm).index(i)] for i in range(kind.rank)), kind.dtype)]


def _broadcast(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    s.give(call, "shape", _ints(kind))
    return [Type(tuple(1 if s.rng.random() < 0.5 else d for d in _ints(kind)), kind.dtype)]


def _slice(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    axis, step = s.axis(call, kind.rank), s.give(call, "step", s.rng.choice((1, 1, 2)))
    start = s.give(call, "start", s.rng.randint(0, 3))
    stop = s.give(call, "stop", start + (int(kind.shape[axis]) - 1) * step + 1)  # type: ignore[arg-type]
    return [Type(_replace(_ints(kind), axis, stop + s.rng.randint(0, 2)), kind.dtype)]


def _windows(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    *shape, size = _ints(kind) if kind.rank >= 2 else _fail()
    axis = s.axis(call, len(shape))
    s.give(call, "size", size)
    stride, dilation = s.give(call, "stride", s.rng.choice((1, 2))), s.give(call, "dilation", s.rng.choice((1, 2)))
    length = (shape[axis] - 1) * stride + dilation * (size - 1) + 1
    return [Type(_replace(tuple(shape), axis, length), kind.dtype)]


def _concat(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    axis = s.axis(call, kind.rank)
    size = _ints(kind)[axis]
    cut = s.rng.randint(0, size)
    return [Type(_replace(_ints(kind), axis, d), kind.dtype) for d in (cut, size - cut)]


def _pad(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    axis, size = s.axis(call, kind.rank), _ints(kind)
    lo = s.give(call, "lo", s.rng.randint(0, size[axis] - 1))
    hi = s.give(call, "hi", s.rng.randint(0, size[axis] - 1 - lo))
    s.give(call, "value", s.rng.choice((0.0, 1.5, float("-inf")) if kind.dtype == s.dtype else (0.0, 1.0)))
    return [Type(_replace(size, axis, size[axis] - lo - hi), kind.dtype)]


def _gather(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape, width = _ints(kind), s.rng.randint(1, 2)
    axis = s.give(call, "axis", s.rng.randrange(kind.rank))
    if axis + width > kind.rank:
        raise Retry
    source = (*shape[:axis], s.rng.choice((5, 7)), *shape[axis + width :])
    return [Type(source, kind.dtype), Type(shape[axis : axis + width], "int64")]


def _gather_elements(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    axis = s.axis(call, kind.rank)
    return [Type(_replace(_ints(kind), axis, 5), kind.dtype), Type(kind.shape, "int64")]


def _scatter(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    axis = s.axis(call, kind.rank)
    if int(kind.shape[axis]) < 5:  # type: ignore[arg-type]
        raise Retry
    s.give(call, "mode", s.rng.choice(("add", "max", "min")))
    part = _replace(_ints(kind), axis, 3)
    return [kind, Type(part, "int64"), Type(part, kind.dtype)]


def _norm(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    return [kind, *(Type(kind.shape[-1:], kind.dtype) for _ in call.args[1:])]


def _channel_norm(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.rank < 2:
        raise Retry
    if "groups" in OPS[call.op].attrs:
        groups = s.give(call, "groups", s.rng.choice((1, 2)))
        if _ints(kind)[1] % groups:
            raise Retry
    return [kind, *(Type(kind.shape[1:2], kind.dtype) for _ in call.args[1:])]


def _attention(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    *batch, rows, width = _ints(kind) if kind.rank >= 3 else _fail()
    d, causal = s.size(), s.give(call, "causal", s.rng.random() < 0.4)
    s.give(call, "window", s.rng.choice((0, 0, 0, 2)))
    s.give(call, "softcap", s.rng.choice((0.0, 0.0, 0.0, 2.0)))
    columns = rows if causal and s.rng.random() < 0.7 else rows + s.rng.randint(0, 3)
    keys = (*batch[:2], 1, *batch[3:]) if len(batch) == 3 else tuple(batch)
    shapes: list[Shape] = [(*batch, rows, d), (*keys, columns, d), (*keys, columns, width)]
    mask = Type((*((1,) * len(batch)), rows, columns), "bool" if call.op == "hiding_attention" else kind.dtype)
    return [*(Type(shape, kind.dtype) for shape in shapes), *([mask] if len(call.args) == 4 else [])]


def _rope(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if _ints(kind)[-1] % 2:
        raise Retry
    line = (*((1,) * (kind.rank - 1)), _ints(kind)[-1])
    return [kind, Type(line, kind.dtype), Type(line, kind.dtype)]


def _cross_entropy(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.rank != 1 or kind.dtype != s.dtype:
        raise Retry
    return [Type((*_ints(kind), 6), kind.dtype), Type(kind.shape, "int64")]


def _recurrent(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    """Operand types of a recurrent op, with a random state length; the wanted shape is ignored."""
    if kind.rank != 1 or not is_float(kind.dtype):
        raise Retry
    cell = s.give(call, "cell", s.rng.choice(("lstm", "gru", "plain")))
    usual = {"lstm": "sigmoid tanh tanh", "gru": "sigmoid tanh", "plain": s.rng.choice(("tanh", "relu"))}[cell]
    rare = {"lstm": ("peephole", "coupled"), "gru": ("reset first",), "plain": ("",)}[cell]
    s.give(call, "activations", usual)
    variant = s.give(call, "variant", s.rng.choice(("", "", *rare)))
    hidden = s.give(call, "hidden", s.size())
    width = s.give(call, "width", s.rng.choice((hidden, hidden, 1)) if cell == "lstm" else hidden)
    layers, directions = s.give(call, "layers", s.rng.choice((1, 2))), s.give(call, "directions", s.rng.choice((1, 2)))
    steps, batch, size, count = s.size(), s.size(), s.size(), layers * directions
    rows = hidden * GATES[cell][0]
    states = count * batch * (width + (hidden if cell == "lstm" else 0))
    own = rows * (width + 2) + (width * hidden if width != hidden else 0) + (3 * hidden if "peep" in variant else 0)
    weights = directions * rows * (size + (layers - 1) * directions * width) + count * own
    return [Type(shape, kind.dtype) for shape in ((steps, batch, size), (states,), (weights,))]


def _conv_input_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = s.give(call, "shape", _ints(kind))
    if kind.rank < 3:
        raise Retry
    sizes, groups = _geometry(s, call, shape)
    out = groups * s.rng.randint(1, 2)
    weight = (out, shape[1] // groups, *(size for size, _ in sizes))
    return [Type((shape[0], out, *(made for _, made in sizes)), kind.dtype), Type(weight, kind.dtype)]


def _conv_weight_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = s.give(call, "shape", _ints(kind))
    if kind.rank < 3:
        raise Retry
    image = (s.rng.randint(1, 2), 1, *(size + s.rng.randint(0, 4) for size in shape[2:]))
    sizes, groups = _geometry(s, call, image, shape[2:])
    if shape[0] % groups:
        raise Retry
    x = (image[0], shape[1] * groups, *image[2:])
    return [Type(x, kind.dtype), Type((x[0], shape[0], *(made for _, made in sizes)), kind.dtype)]


def _geometry(
    s: _Draw, call: pattern.PatternCall, image: Sequence[int], kernel: Sequence[int] = ()
) -> tuple[list[tuple[int, int]], int]:
    """Draw strides, padding, dilations and groups of a convolution of an image.

    Returns ([(window size, result size) of each spatial axis], groups).
    """
    n = len(image) - 2
    strides = s.give(call, "strides", tuple(s.rng.choice((1, 1, 2)) for _ in range(n)))
    half = tuple(s.rng.randint(0, 1) for _ in range(n))
    pads = s.give(call, "pads", (*half, *half))
    dilations = s.give(call, "dilations", tuple(s.rng.choice((1, 1, 2)) for _ in range(n)))
    groups = s.give(call, "groups", s.rng.choice([g for g in (1, 1, 2) if kernel or image[1] % g == 0]))
    sizes = [(kernel[i] if kernel else s.rng.randint(1, 3)) for i in range(n)]
    made = [conv_size(image[2 + i], sizes[i], strides[i], pads[i], pads[n + i], dilations[i]) for i in range(n)]
    return [(size, int(m)) for size, m in zip(sizes, made)], groups  # type: ignore[arg-type]  # sizes are concrete


def _norm_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = _ints(kind)
    statistics = [Type((*shape[:-1], 1), kind.dtype)] * 2
    return [kind, kind, Type(shape[-1:], kind.dtype), *statistics]


def _channel_norm_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = _ints(kind) if kind.rank >= 2 else _fail()
    line = [Type(shape[1:2], kind.dtype)]
    if "groups" not in OPS[call.op].attrs:
        return [kind, kind, *line * 3]
    groups = s.give(call, "groups", s.rng.choice((1, 2)))
    if shape[1] % groups:
        raise Retry
    return [kind, kind, *line, *[Type((shape[0], groups), kind.dtype)] * 2]


def _channel_statistic(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    if kind.rank != 1:
        raise Retry
    return [Type((s.size(), *_ints(kind), *s.shape(0, 2)), kind.dtype)]


def _softmax_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    s.axis(call, kind.rank)
    return [kind, kind]


def _attention_statistics(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    *batch, rows, last = _ints(kind) if kind.rank >= 3 else _fail()
    if last != 1:
        raise Retry
    d, columns = s.size(), rows if s.give(call, "causal", s.rng.random() < 0.4) else s.size()
    masks = [Type((*(1,) * len(batch), rows, columns), kind.dtype)] * (len(call.args) - 2)
    return [Type((*batch, rows, d), kind.dtype), Type((*batch, columns, d), kind.dtype), *masks]


def _attention_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    *batch, rows, d = _ints(kind) if kind.rank >= 3 else _fail()
    if s.give(call, "of", "query") != "query":
        raise Retry
    causal, width = s.give(call, "causal", s.rng.random() < 0.4), s.size()
    columns = rows if causal else s.size()
    q, k, v = (*batch, rows, d), (*batch, columns, d), (*batch, columns, width)
    out, masks = (*batch, rows, width), [(*(1,) * len(batch), rows, columns)] * (len(call.args) - 6)
    return [Type(tuple(x), kind.dtype) for x in (q, k, v, out, out, (*batch, rows, 1), *masks)]


def _max_pool_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    shape = s.give(call, "shape", _ints(kind))
    if len(shape) < 3 or kind.dtype != s.dtype or math.prod(shape[2:]) < 5:  # indices are drawn below 5
        raise Retry
    pooled = (*shape[:2], *(s.rng.randint(1, size) for size in shape[2:]))
    return [Type(pooled, kind.dtype), Type(pooled, "int64")]


def _embedding_gradient(s: _Draw, call: pattern.PatternCall, kind: Type) -> list[Type]:
    s.give(call, "skipped", s.rng.choice((-1, 0)))
    if kind.rank != 2 or kind.dtype != s.dtype or _ints(kind)[0] < 5:  # indices are drawn below 5
        raise Retry
    lead = s.shape(1, 2)
    s.give(call, "shape", _ints(kind))
    return [Type((*lead, _ints(kind)[1]), kind.dtype), Type(lead, "int64")]


#: Shape law -> rule from the output type to operand types.
_RULES: dict[str, Rule] = {
    "pointwise": _pointwise, "compare": _compare, "where": _where, "cast": _cast, "reduce": _reduce,
    "arg_reduce": _arg_reduce, "along": _along, "same": _along, "along_index": _along_index, "matmul": _matmul,
    "linear": _linear, "conv": _conv, "pool": _pool, "reshape": _reshape, "permute": _permute,
    "broadcast_to": _broadcast, "slice": _slice, "windows": _windows, "concat": _concat, "pad": _pad,
    "gather": _gather, "gather_elements": _gather_elements, "scatter_elements": _scatter, "norm": _norm,
    "channel_norm": _channel_norm, "attention": _attention, "rope": _rope, "cross_entropy": _cross_entropy,
    "recurrent": _recurrent, "from_float8": _from_float8, "unpack": _unpack, "dequantize": _dequantize,
    "quantize": _quantize, "integer_conv": _integer_conv, "integer_matmul": _integer_matmul,
    "conv_input_gradient": _conv_input_gradient, "conv_weight_gradient": _conv_weight_gradient,
    "norm_gradient": _norm_gradient, "channel_norm_gradient": _channel_norm_gradient, "softmax_gradient": _softmax_gradient,
    "channel_statistic": _channel_statistic, "attention_statistics": _attention_statistics, "attention_gradient": _attention_gradient,
    "max_pool_gradient": _max_pool_gradient, "embedding_gradient": _embedding_gradient,
}  # fmt: skip


def _root_shape(s: _Draw) -> Shape:
    shape = list(s.shape(1, 5))
    if s.rng.random() < 0.4:
        shape[s.rng.randrange(len(shape))] = 1
    if len(shape) >= 4 and s.rng.random() < 0.5:
        shape[0] = 1
    return tuple(shape)


def _root_dtype(s: _Draw, term: pattern.Term) -> str:
    if isinstance(term, pattern.PatternCall) and term.op == "quantize":
        return s.rng.choice(("uint8", "int8"))
    return s.rng.choice((s.dtype, s.dtype, "bool", "int64"))


def _layout(s: _Draw, template: Template, name: str, kind: Type) -> tuple[int, ...]:
    """Strides of an operand: row-major, or with permuted axes where the template accepts them."""
    row_major = contiguous(_ints(kind))
    if name in template.prep or name in template.dense or "*" in template.dense or s.rng.random() < 0.5:
        return row_major
    order = [0, 2, 3, 1] if kind.rank == 4 and s.rng.random() < 0.4 else s.rng.sample(range(kind.rank), kind.rank)
    inner = contiguous([_ints(kind)[i] for i in order])
    found = [0] * kind.rank
    for i, stride in zip(order, inner):
        found[i] = stride
    return tuple(w if d == 1 else f for f, w, d in zip(found, row_major, _ints(kind)))


def _float_values(term: pattern.Term) -> dict[str, float]:
    """A value for each variable of a pattern that stands for a float attribute."""
    found: dict[str, float] = {}
    for call in pattern.subterms(term):
        if not isinstance(call, pattern.PatternCall):
            continue
        for name, spelled in call.attrs:
            if isinstance(spelled, Name) and OPS[call.op].attrs[name] == "float":
                default = OPS[call.op].defaults.get(name, 0.5)
                found[spelled.name] = _FLOATS.get(spelled.name, default if math.isfinite(default) else 0.5)
    return found


def _attempt(template: Template, s: _Draw) -> Call | None:
    term = template.term
    s.want(term, Type(_root_shape(s), _root_dtype(s, term)))
    floats = _float_values(term)
    for name in pattern.attr_variables(term):
        s.attrs.setdefault(name, floats.get(name))
    if any(v is None for v in s.attrs.values()):
        return None
    env = {**s.attrs, **{n: Fact(k, n in template.prep) for n, k in s.types.items()}}
    if not holds(template.guards, env):
        return None
    leaves = {n: param(n, k.shape, k.dtype) for n, k in s.types.items()}
    out, *others = (pattern.build(t, leaves, s.attrs).type for t in template.terms)
    more = tuple(Operand(kind, contiguous(_ints(kind))) for kind in others)
    operands = {n: Operand(s.types[n], _layout(s, template, n, s.types[n])) for n in template.operands}
    call = Call(operands, Operand(out, contiguous(_ints(out))), s.attrs, more=more)
    if template.applies is not None and not template.applies(call):
        return None
    if template.layout is not None:
        call = Call(operands, Operand(out, template.layout(call)), s.attrs, more=more)
    return call


def sample(template: Template, seed: int = 0, dtype: str = "float32", attempts: int = 3000) -> Call | None:
    """Draw a small random legal call of a template (a kernel's pattern and code), deterministic per seed; None if
    `attempts` attempts find none.

    `dtype`: dtype of values for which the ops of the pattern prescribe none.
    """
    rng = random.Random(f"{template.name}-{seed}-{dtype}")
    for _ in range(attempts):
        try:
            found = _attempt(template, _Draw(rng, dtype))
        except (Retry, ShapeError):
            continue
        if found is not None:
            return found
    return None
