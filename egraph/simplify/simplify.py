"""Graph simplification before the search: identities, view folding, bounded constant folding.

One bottom-up pass. Operands are simplified before their user, and nodes that a rule builds pass through the same rules,
so the result is a fixpoint. Hash-consing gives common subexpression elimination, and reachability from the outputs
gives dead code elimination.

`exact` preserves every bit (except NaN payloads): only steps that hold in floating-point arithmetic are taken.
Otherwise steps may change rounding, the sign of a zero, and `pow` of negative zero or infinity. No step copies weights:
expressions of parameters stay and are folded when weights are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import frexp, isfinite
from typing import Any

import numpy as np

from ..ir import dtypes
from ..ir.atomic_ops import Array
from ..ir.dims import Dim, Shape, volume
from ..ir.graph import Graph, Tensor, constant, make, topological
from ..ir.interpret import evaluate
from ..ir.ops import OPS
from ..ir.type_laws import broadcast
from .positions import any_of, counter, reshaped

#: Largest result (in bytes) of constant folding.
FOLD_BYTES = 1 << 14

Rule = Callable[["Simplifier", str, tuple[Tensor, ...], dict[str, Any]], Tensor | None]


def simplify(graph: Graph, *, exact: bool = False, fold_bytes: int = FOLD_BYTES) -> Graph:
    """An equivalent simplified graph; the same object if nothing changed.

    Constant folding is limited to `fold_bytes` per value.
    """
    run = Simplifier(exact, fold_bytes)
    roots = [run.visit(r) for r in graph.roots]
    return graph if all(a is b for a, b in zip(roots, graph.roots, strict=True)) else graph.with_roots(roots)


@dataclass
class Simplifier:
    """State of one simplification pass.

    The memo of simplified nodes and the canonical operand order of commutative ops.
    """

    exact: bool = False
    fold_bytes: int = FOLD_BYTES
    done: dict[Tensor, Tensor] = field(default_factory=dict)
    spelling: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def visit(self, root: Tensor) -> Tensor:
        """The simplified form of a term."""
        for node in topological([root]):
            if node not in self.done:
                args = tuple(self.done[a] for a in node.args)
                new = self.build(node.op, args, dict(node.attrs), node.data)
                self.done[node] = self.done[new] = new
        return self.done[root]

    def build(self, op: str, args: Sequence[Tensor], attrs: dict[str, Any] | None = None, data: Any = None) -> Tensor:
        """`make` followed by simplification; the operands must already be simplified."""
        args, attrs = tuple(args), attrs or {}
        plain = make(op, args, attrs, data=data)
        if plain in self.done:
            return self.done[plain]
        if plain.op in ("input", "param", "state"):
            return plain
        found = self._rewrite(plain, dict(plain.attrs))
        self.done[plain] = found
        return found

    def _rewrite(self, node: Tensor, attrs: dict[str, Any]) -> Tensor:
        """Apply the first simplification rule that changes the node."""
        for rule in _rules(node.op):
            found = rule(self, node.op, node.args, attrs)
            if found is not None and found is not node:
                # a rule may change how a zero-size or broadcast result is computed, never its type
                assert found.type == node.type, f"{rule.__name__}: {node.type} became {found.type}"
                return found
        return node

    def scalar(self, value: float, like: Tensor) -> Tensor:
        """Fill with the rank and dtype of a tensor, and size 1 along every axis."""
        return _full((1,) * like.rank, value, like.dtype)

    def stretched(self, x: Tensor, shape: Shape) -> Tensor:
        """A tensor broadcast to a shape of the same rank; unchanged if it has that shape."""
        return self.build("broadcast_to", (x,), {"shape": shape})


# ---------------------------------------------------------------- constant folding
def _full(shape: Shape, value: Any, dtype: str) -> Tensor:
    """A fill node with its value in canonical form: float, 0/1 for bool, or an int wrapped to the dtype's range."""
    kind = dtypes.category(dtype)
    low = int(dtypes.least(dtype)) if kind == "int" else 0
    written = (
        float(value) if kind == "float"
        else int(bool(value)) if kind == "bool"
        else (int(value) - low) % (1 << 8 * dtypes.itemsize(dtype)) + low
    )  # fmt: skip
    return make("full", (), {"value": written, "shape": shape, "dtype": dtype})


def _written(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    return _full(attrs["shape"], attrs["value"], attrs["dtype"])


def _constant(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Replace a small constant whose elements are all equal by a fill."""
    data = make(op, (), attrs).data
    return None if data is None or data.nbytes > s.fold_bytes else _known(data, attrs["dtype"], attrs["shape"])


def number(x: Tensor) -> float | None:
    """The value of a fill node; None for other nodes."""
    return x.attr("value") if x.op == "full" else None


def _empty(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Replace an empty value (0 elements) by a fill."""
    made = make(op, args, attrs)
    return _full(made.shape, 0, made.dtype) if any(isinstance(d, int) and d == 0 for d in made.shape) else None


def _known(array: Array, dtype: str, shape: Shape) -> Tensor:
    """An array as a fill (all elements bitwise equal), an iota (a counter), or a constant."""
    flat = array.reshape(-1)
    if flat.size and (flat.view(np.uint8).reshape(flat.size, -1) == flat[:1].view(np.uint8)).all():
        return _full(shape, flat[0].item(), dtype)
    counts = counter(array)
    return constant(array) if counts is None else counts


def _fold(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Constant folding. Ops over fills fold at any size; constants and iotas fold only within the size limit."""
    if not args or any(a.op not in ("full", "constant", "iota") for a in args):
        return None
    node = make(op, args, attrs)
    if node.entry.pointwise and all(a.op == "full" for a in args):
        single = [_full((), a.attr("value"), a.dtype) for a in args]
        wide = not s.exact and dtypes.is_float(node.dtype) and all(dtypes.is_float(a.dtype) for a in args)
        value = evaluate([make(op, single, attrs)], {}, float64=wide)[0]
        return _full(node.shape, value.item(), node.dtype)
    if any(not isinstance(d, int) for a in (node, *args) for d in a.shape) or not 0 < node.type.nbytes <= s.fold_bytes:
        return None
    if any(a.type.nbytes > 16 * s.fold_bytes or volume(a.shape) == 0 for a in args):
        return None
    value = evaluate([node], {}, float64=not s.exact)[0].astype(dtypes.numpy_dtype(node.dtype))  # rounded once
    return _known(np.ascontiguousarray(value), node.dtype, node.shape)


# ---------------------------------------------------------------- pointwise
def _order(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Canonical operand order of commutative ops: a fill second, otherwise the order seen first.

    Skipped for maximum and minimum in exact mode: max(0.0, -0.0) returns the first operand.
    """
    if not OPS[op].commutative or len(args) != 2 or (s.exact and op in ("maximum", "minimum")):
        return None
    x, y = args
    if (x.op == "full") != (y.op == "full"):
        return s.build(op, (y, x), attrs) if x.op == "full" else None
    key = (op, *sorted((id(x), id(y))))
    first = s.spelling.setdefault(key, make(op, (x, y), attrs))
    return None if first.args[0] is x and first.args[1] is y else s.build(op, first.args, attrs)


def _unstretch(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Compute on unbroadcast operands; if all operands were broadcast, broadcast the result instead."""
    inner = tuple(a.args[0] if a.op == "broadcast_to" else _one(a) for a in args)
    if all(a is b for a, b in zip(inner, args)):
        return None
    shape, small = broadcast(*(a.shape for a in args)), broadcast(*(a.shape for a in inner))
    if small == shape:
        return s.build(op, inner, attrs)
    if any(a.op == "broadcast_to" for a in args):
        return s.stretched(s.build(op, inner, attrs), shape)
    return None


def _one(x: Tensor) -> Tensor:
    """Shrink a fill to size 1 along every axis."""
    if x.op != "full" or all(isinstance(d, int) and d == 1 for d in x.shape):
        return x
    return _full((1,) * x.rank, x.attr("value"), x.dtype)


_POINTWISE: tuple[Rule, ...] = (_order, _unstretch)


def _rules(op: str) -> Iterator[Rule]:
    """The simplification rules of an op, in the order in which they are tried."""
    entry = OPS[op]
    yield from (_empty, _fold)
    if entry.twice:
        yield _twice
    if entry.monoid:
        yield _reduce
    yield from RULES.get(op, ())
    if entry.pointwise:
        yield from _POINTWISE


def _whole(s: Simplifier, x: Tensor, *others: Tensor) -> Tensor:
    """x broadcast to the result shape of a pointwise op with the other operands."""
    return s.stretched(x, broadcast(x.shape, *(o.shape for o in others)))


def _is(x: Tensor, value: float, *, negative_zero: bool = False) -> bool:
    """Whether x is a fill of this value. Zeros must match in sign: -0.0 only with `negative_zero`."""
    found = number(x)
    return found is not None and found == value and (value != 0 or negative_zero == bool(np.signbit(float(found))))


def _is_zero(x: Tensor) -> bool:
    return number(x) == 0


def _add(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    x, y = args
    floats = dtypes.is_float(x.dtype)
    if _is_zero(y) and (not floats or not s.exact or _is(y, 0.0, negative_zero=True)):  # -0.0 + 0.0 is 0.0
        return _whole(s, x, y)
    if y.op == "neg":
        return s.build("sub", (x, y.args[0]))
    if x.op == "neg":
        return s.build("sub", (y, x.args[0]))
    return _gather_numbers(s, op, args)


def _gather_numbers(s: Simplifier, op: str, args: tuple[Tensor, ...]) -> Tensor | None:
    """Merge constants: (x + a) + b and (x * a) * b with numbers a and b."""
    x, b = args
    if (s.exact and dtypes.is_float(x.dtype)) or x.op != op or number(b) is None or number(x.args[1]) is None:
        return None
    both = s.build(op, (x.args[1], b))
    value = number(both)
    if value is None or not isfinite(value) or (value == 0 and op == "mul") or not _representable(value, x.dtype):
        return None
    return s.build(op, (x.args[0], both))


def _representable(value: float, dtype: str) -> bool:
    """Whether a number neither overflows nor underflows to zero in a dtype."""
    if not dtypes.is_float(dtype):
        return True
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.asarray(value).astype(dtypes.numpy_dtype(dtype)))
    return isfinite(rounded) and (rounded != 0 or value == 0)


def _sub(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    x, y = args
    floats = dtypes.is_float(x.dtype)
    if _is_zero(y) and (not floats or not s.exact or _is(y, 0.0)):
        return _whole(s, x, y)
    if _is_zero(x) and (not floats or not s.exact or _is(x, 0.0, negative_zero=True)):
        return _whole(s, s.build("neg", (y,)), x)
    if y.op == "neg":
        return s.build("add", (x, y.args[0]))
    if not s.exact and floats and number(y) is not None:
        return s.build("add", (x, _full(y.shape, -float(number(y) or 0.0), y.dtype)))
    return None


def _mul(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    x, y = args
    if x.dtype == "bool":
        return None
    if _is(y, 1):
        return _whole(s, x, y)
    if _is(y, -1) and not x.dtype.startswith("u"):
        return _whole(s, s.build("neg", (x,)), y)
    if _is_zero(y) and not dtypes.is_float(x.dtype):
        return s.stretched(s.scalar(0, x), broadcast(x.shape, y.shape))
    if x.op == "neg" and y.op == "neg":
        return s.build("mul", (x.args[0], y.args[0]))
    found = _gather_numbers(s, op, args)
    return _mask(s, args) if found is None else found


HUGE = 1e4  # a sum with a number of this magnitude loses significant digits


def _mask(s: Simplifier, args: tuple[Tensor, ...]) -> Tensor | None:
    """Protect an additive mask (1 − m)·huge by rewriting it as where(1 − m = 0, 0, 1 − m)·huge.

    This prevents distributing into huge − m·huge, whose terms would absorb the other summands before they cancel.
    """
    x, by = args[0], number(args[1])
    base = x
    while base.args and base.entry.kind == "view":
        base = base.args[0]
    if s.exact or by is None or not HUGE <= abs(by) < float("inf") or base.op not in ("add", "sub"):
        return None
    zero = s.scalar(0, x)
    return s.build("mul", (s.build("where", (s.build("eq", (x, zero)), zero, x)), args[1]))


def _div(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    x, y = args
    by = number(y)
    if by is None or not by or not isfinite(by) or not _representable(by, y.dtype):
        return None
    if _is(y, 1):
        return _whole(s, x, y)
    inverse = 1.0 / by
    if not _representable(inverse, y.dtype) or (s.exact and abs(frexp(by)[0]) != 0.5):
        return None
    return s.build("mul", (x, _full(y.shape, inverse, y.dtype)))


def _pow(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    x, y = args
    floats, power = dtypes.is_float(x.dtype), number(y)
    if _is(y, 1) and not (floats and s.exact):  # NumPy's pow(x, 1.0) is off by one bit for some x
        return _whole(s, x, y)
    if power is None or (floats and s.exact) or x.dtype == "bool":
        return None
    if power in (2, 3, 4):
        square = s.build("mul", (x, x))
        found = square if power == 2 else s.build("mul", (square, x if power == 3 else square))
        return _whole(s, found, y)
    roots = {0.5: "sqrt", -0.5: "rsqrt", -1: "recip"}
    return _whole(s, s.build(roots[power], (x,)), y) if floats and power in roots else None


def _twice(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """-(-x), |(|x|)|, floor(floor(x)) and similar."""
    (x,) = args
    if x.op == op:
        return x.args[0] if OPS[op].twice == "operand" else x
    if op == "abs" and x.op == "neg" and not x.dtype.startswith("u"):
        return s.build("abs", x.args)
    return None


def _same_twice(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    return args[0] if args[0] is args[1] else None


def _logic(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """`and`, `or` with a constant bool, or of equal operands."""
    x, y = args
    if x is y:
        return x
    if x.dtype != "bool" or number(y) is None:
        return None
    neutral = op == "and"
    shape = broadcast(x.shape, y.shape)
    return s.stretched(x if bool(number(y)) == neutral else s.scalar(not neutral, x), shape)


def _where(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    condition, x, y = args
    if number(condition) is not None:
        chosen = x if number(condition) else y
        return s.stretched(chosen, broadcast(*(a.shape for a in args)))
    if x is y:
        return s.stretched(x, broadcast(*(a.shape for a in args)))
    return s.build("where", (condition.args[0], y, x)) if condition.op == "not" else None


#: Significand bits per float dtype: integers up to 2**n are exact.
_WHOLE = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_WIDER = {("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("float16", "float64"),
          ("bfloat16", "float64")}  # fmt: skip


def lossless(source: str, target: str) -> bool:
    """Whether every value of the source dtype is exactly representable in the target dtype."""
    if source == target or (source, target) in _WIDER or source == "bool":
        return True
    if dtypes.category(source) != "int" or target == "bool":
        return False
    bits, signed = 8 * dtypes.itemsize(source), not source.startswith("u")
    if dtypes.is_float(target):
        return bits - signed <= _WHOLE[target]
    if target.startswith("u"):
        return not signed and bits <= 8 * dtypes.itemsize(target)
    return bits - signed <= 8 * dtypes.itemsize(target) - 1


def _cast(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Remove a cast to the same dtype; merge a cast with a preceding lossless cast."""
    (x,), target = args, attrs["dtype"]
    if x.dtype == target:
        return x
    if x.op == "cast" and lossless(x.args[0].dtype, x.dtype):
        source = x.args[0].dtype
        if dtypes.is_float(source) or not dtypes.is_float(target) or lossless(source, target):
            return s.build("cast", x.args, attrs)
    return None


# ---------------------------------------------------------------- reductions
def _reduce(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Drop reduced axes of size 1 (a sum over one -0.0 may give 0.0); merge nested max or min."""
    (x,), axes = args, attrs["axes"]
    if s.exact and OPS[op].linear:
        return None
    order = OPS[op].algebra == "order"
    kept = tuple(sorted({a for a in axes if x.shape[a] != 1}))
    if order and x.op == op:
        return s.build(op, x.args, {"axes": tuple(sorted({*x.attr("axes"), *kept}))})
    if order and x.op == "full" and volume(x.shape) != 0:
        return _full(make(op, args, attrs).shape, x.attr("value"), x.dtype)
    if kept == axes:
        return None
    return s.build(op, (x,), {"axes": kept}) if kept else x


def _any_position(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Replace `any` over a mask of positions by comparisons of bounds."""
    (x,), axes = args, attrs["axes"]
    return any_of(x, axes[0], s.build) if x.dtype == "bool" and len(axes) == 1 else None


def _along_one(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Cumulative sum or flip along an axis of size 1 is the identity."""
    (x,) = args
    return x if x.shape[attrs["axis"]] == 1 or (x.op == "full" and op == "flip") else None


# ---------------------------------------------------------------- views
def _to_shape(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Reshape or broadcast: drop no-ops, fold into fills, reshape iotas, keep only the last of two."""
    (x,), shape = args, attrs["shape"]
    if x.shape == shape:
        return x
    if x.op == "full":
        return _full(shape, x.attr("value"), x.dtype)
    if x.op == "iota" and op == "reshape":
        return reshaped(x, shape)
    return s.build(op, x.args, attrs) if x.op == op else None


def _permute(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Compose permutations; a permutation that keeps the order of all axes longer than 1 is a reshape."""
    (x,), perm = args, attrs["perm"]
    if perm == tuple(range(len(perm))):
        return x
    shape = tuple(x.shape[p] for p in perm)
    if x.op == "full":
        return _full(shape, x.attr("value"), x.dtype)
    if x.op == "permute":
        inner = x.attr("perm")
        return s.build("permute", x.args, {"perm": tuple(inner[p] for p in perm)})
    moved = [p for p in perm if x.shape[p] != 1]
    return s.build("reshape", (x,), {"shape": shape}) if moved == sorted(moved) else None


def _ints(*values: Dim) -> bool:
    return all(isinstance(v, int) for v in values)


def _slice(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Slices of slices, of one side of a concat, of padding, of broadcasts and of fills."""
    (x,), axis, start, stop, step = args, attrs["axis"], attrs["start"], attrs["stop"], attrs["step"]
    size = x.shape[axis]
    if start == 0 and stop == size and step == 1:
        return x
    shape = make(op, args, attrs).shape
    if x.op == "full":
        return _full(shape, x.attr("value"), x.dtype)
    if x.op == "broadcast_to" and x.args[0].shape[axis] == 1:
        return s.build("broadcast_to", x.args, {"shape": shape})
    if x.op == "iota" and (x.attr("axis") != axis or (start == 0 and step == 1)):
        return make("iota", (), {**dict(x.attrs), "shape": shape})
    if not _ints(size, start, stop) or not _ints(*shape[axis : axis + 1]):
        return None
    last = start + (shape[axis] - 1) * step  # index of the last element taken; there is at least one
    if stop != last + 1:
        return s.build("slice", args, {**attrs, "stop": last + 1})
    if step != 1 and shape[axis] == 1:
        return s.build("slice", args, {**attrs, "step": 1})
    inner = _SLICED.get(x.op)
    return inner(s, x, axis, start, last, step) if inner and x.attr("axis") == axis else None


def _slice_of_slice(s: Simplifier, x: Tensor, axis: int, start: int, last: int, step: int) -> Tensor | None:
    """One slice in place of two nested ones."""
    first, by = x.attr("start"), x.attr("step")
    if not _ints(first):
        return None
    return s.build("slice", x.args, {"axis": axis, "start": first + start * by, "stop": first + last * by + 1,
                                     "step": step * by})  # fmt: skip


def _slice_of_concat(s: Simplifier, x: Tensor, axis: int, start: int, last: int, step: int) -> Tensor | None:
    """A slice within one side of a concat as a slice of that side."""
    left, right = x.args
    seam = left.shape[axis]
    if not isinstance(seam, int) or last >= seam > start:
        return None
    shift = 0 if last < seam else seam
    attrs = {"axis": axis, "start": start - shift, "stop": last + 1 - shift, "step": step}
    return s.build("slice", (right if shift else left,), attrs)


def _slice_of_pad(s: Simplifier, x: Tensor, axis: int, start: int, last: int, step: int) -> Tensor | None:
    """A slice within the padding as a fill; a slice within the data as a slice of the operand."""
    (data,), lo = x.args, x.attr("lo")
    size = data.shape[axis]
    if not _ints(lo, size):
        return None
    if last < lo or start >= lo + size:
        shape = list(x.shape)
        shape[axis] = (last - start) // step + 1
        return _full(tuple(shape), x.attr("value"), x.dtype)
    if start >= lo and last < lo + size:
        return s.build("slice", (data,), {"axis": axis, "start": start - lo, "stop": last + 1 - lo, "step": step})
    return None


_SLICED: dict[str, Callable[[Simplifier, Tensor, int, int, int, int], Tensor | None]] = {
    "slice": _slice_of_slice,
    "concat": _slice_of_concat,
    "pad": _slice_of_pad,
}


def _concat(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Drop empty parts; merge adjacent slices of one value and equal fills."""
    (x, y), axis = args, attrs["axis"]
    for part, other in ((x, y), (y, x)):
        if part.shape[axis] == 0:
            return other
    if x.op == y.op == "full" and _same_fill(x, y):
        return _full(make(op, args, attrs).shape, x.attr("value"), x.dtype)
    if x.op == y.op == "slice" and x.args == y.args and x.attr("axis") == y.attr("axis") == axis:
        if x.attr("step") == y.attr("step") == 1 and x.attr("stop") == y.attr("start"):
            return s.build("slice", x.args, {**dict(x.attrs), "stop": y.attr("stop")})
    return None


def _same_fill(x: Tensor, y: Tensor) -> bool:
    one = (1,) * x.rank
    return _full(one, x.attr("value"), x.dtype) is _full(one, y.attr("value"), y.dtype)


def _pad(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    (x,), axis, lo, hi, value = args, attrs["axis"], attrs["lo"], attrs["hi"], attrs["value"]
    if lo == 0 and hi == 0:
        return x
    if x.op == "full" and _same_fill(x, _full(x.shape, value, x.dtype)):
        return _full(make(op, args, attrs).shape, x.attr("value"), x.dtype)
    if (
        x.op == "pad"
        and x.attr("axis") == axis
        and _same_fill(*(_full((), v, "float64") for v in (value, x.attr("value"))))
    ):
        return s.build("pad", x.args, {**attrs, "lo": lo + x.attr("lo"), "hi": hi + x.attr("hi")})
    return None


def _flip(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    (x,) = args
    return x.args[0] if x.op == "flip" and x.attr("axis") == attrs["axis"] else None


def _windows(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Windows of one element are a reshape."""
    (x,) = args
    plain = attrs["size"] == 1 and attrs["stride"] == 1
    return s.build("reshape", (x,), {"shape": (*x.shape, 1)}) if plain else None


def _gather(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Gather from a fill is a fill; at a constant index it is a slice.

    At few runs of consecutive indices a concat of slices.
    """
    x, index = args
    shape = make(op, args, attrs).shape
    if x.op == "full" and volume(x.shape) != 0:
        return _full(shape, x.attr("value"), x.dtype)
    at, axis = number(index), attrs["axis"]
    if not isinstance(x.shape[axis], int):
        return None
    if index.rank == 1 and isinstance(index.shape[0], int) and (index.data is not None or index.op == "iota"):
        places = np.arange(index.shape[0]) if index.data is None else index.data
        return _runs(s, x, axis, np.clip(places, 0, x.shape[axis] - 1).tolist())
    if at is None or volume(index.shape) != 1:
        return None
    spot = min(max(int(at), 0), x.shape[axis] - 1)
    piece = s.build("slice", (x,), {"axis": axis, "start": spot, "stop": spot + 1})
    return s.build("reshape", (piece,), {"shape": shape})


RUNS = 3  # largest number of consecutive index runs for which a gather becomes slices


def _runs(s: Simplifier, x: Tensor, axis: int, places: Sequence[int]) -> Tensor | None:
    """A gather at constant indices as a concat of slices (for example the component rotations of a cross product)."""
    starts = [n for n in range(len(places)) if n == 0 or places[n] != places[n - 1] + 1]
    if not 0 < len(starts) <= RUNS:
        return None
    runs = [(places[a], places[b - 1] + 1) for a, b in zip(starts, [*starts[1:], len(places)])]
    found, *more = (s.build("slice", (x,), {"axis": axis, "start": a, "stop": b}) for a, b in runs)
    for piece in more:
        found = s.build("concat", (found, piece), {"axis": axis})
    return found


def _clip(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Clip without limits is the identity; clip with lower limit +0.0 and no upper limit is relu."""
    if attrs["lo"] == float("-inf") and attrs["hi"] == float("inf"):
        return args[0]
    return s.build("relu", args) if attrs["hi"] == float("inf") and _is_plus_zero(attrs["lo"]) else None


def _is_plus_zero(value: float) -> bool:
    return value == 0 and not np.signbit(float(value))


#: op -> simplification rules, tried in order after those by the facts of its entry (`_rules`).
RULES: dict[str, tuple[Rule, ...]] = {
    "full": (_written,),
    "constant": (_constant,),
    "add": (_add,),
    "sub": (_sub,),
    "mul": (_mul,),
    "div": (_div,),
    "pow": (_pow,),
    "maximum": (_same_twice,),
    "minimum": (_same_twice,),
    "and": (_logic,),
    "or": (_logic,),
    "where": (_where,),
    "cast": (_cast,),
    "mean": (_reduce,),
    "max": (_any_position,),
    "cumsum": (_along_one,),
    "flip": (_along_one, _flip),
    "reshape": (_to_shape,),
    "permute": (_permute,),
    "broadcast_to": (_to_shape,),
    "slice": (_slice,),
    "concat": (_concat,),
    "pad": (_pad,),
    "windows": (_windows,),
    "gather": (_gather,),
    "clip": (_clip,),
}
__all__ = ["FOLD_BYTES", "Simplifier", "lossless", "number", "simplify"]
