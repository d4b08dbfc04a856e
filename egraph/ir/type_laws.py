"""Shape and dtype laws, in Python and for egglog side by side: the type of a result from the types of its operands.

The function `NAME` of a law computes a `Type` or raises ShapeError; `NAME_text` yields the same law as egglog text
(`LawCase`), for operands that are known to be valid. A test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...errors import ShapeError
from . import dtypes
from .dims import Dim, Shape, volume
from .ops import Attrs, Op, Type

#: recurrent cell -> (number of gate row blocks in its weights, number of activations).
GATES = {"lstm": (4, 3), "gru": (3, 2), "plain": (1, 1)}
DTYPE_ID = {name: i for i, name in enumerate(dtypes.DTYPES)}  # egglog's ids of dtypes

Law = Callable[[Op, tuple[Type, ...], Attrs], Type]


class LawCase(NamedTuple):
    """One case of a type law in egglog.

    `atoms`: additional query atoms. `broadcasts`: pairs of shapes that must be broadcast first.
    """

    shape: str
    dtype: str
    atoms: tuple[str, ...] = ()
    broadcasts: tuple[tuple[str, str], ...] = ()


Cases = Iterator[LawCase]
LawText = Callable[[Op, Sequence[int]], Cases]  # function of an op and the ranks that may occur


class TypeLaw(NamedTuple):
    """A type law in both forms. `least_rank`: of the first operand. `keeps_rank`: whether all operands have the result's
    rank."""

    infer: Law
    text: LawText
    least_rank: int = 0
    keeps_rank: bool = False


#: egglog text of the operands' shapes and of the first one's dtype
S0, S1, S2, D0 = "(shape x0)", "(shape x1)", "(shape x2)", "(dt x0)"


def broadcast(*shapes: Shape) -> Shape:
    """The broadcast shape of shapes of equal rank; sizes of 1 stretch. ShapeError if sizes do not match."""
    if len({len(s) for s in shapes}) != 1:
        raise ShapeError(f"operands have different ranks: {', '.join(map(str, shapes))}")
    found: list[Dim] = []
    for position, sizes in enumerate(zip(*shapes, strict=True)):
        wide = {d for d in sizes if d != 1} or {1}
        if len(wide) != 1:
            text = f"sizes {sizes} at axis {position} do not broadcast: {', '.join(map(str, shapes))}"
            raise ShapeError(text, sizes=sizes)
        found.append(wide.pop())
    return tuple(found)


def axis_of(axis: int, rank: int) -> int:
    """The axis, if 0 <= axis < rank (builders have already resolved negative axes); otherwise ShapeError."""
    if not 0 <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a rank-{rank} value")
    return axis


def _same_dtype(types: tuple[Type, ...]) -> str:
    if len({t.dtype for t in types}) != 1:
        raise ShapeError(f"operands have different dtypes: {', '.join(t.dtype for t in types)}", hint="cast them")
    return types[0].dtype


def _replace(shape: Shape, axis: int, size: Dim) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def vec_get(vector: str, i: int | str) -> str:
    """Egglog text of an element of a vector."""
    return f"(vec-get {vector} {i})"


def vec_set(vector: str, i: str, value: str) -> str:
    """Egglog text of a vector with one element replaced."""
    return f"(vec-set {vector} {i} {value})"


def has_rank(vector: str, rank: int) -> str:
    """Egglog text of the condition that a vector has so many elements."""
    return f"(= {rank} (vec-length {vector}))"


def vec_of(items: Iterable[str]) -> str:
    """Egglog text of the vector of these elements."""
    return f"(vec-of {' '.join(items)})"


def leaf(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Type from the attributes `shape` and `dtype`."""
    return Type(attrs["shape"], attrs["dtype"])


def leaf_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `leaf`."""
    yield LawCase("a_shape", "a_dtype")


def pointwise(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: broadcast shape, common dtype."""
    return Type(broadcast(*(t.shape for t in types)), _same_dtype(types))


def _broadcast(op: Op, dtype: str) -> Cases:
    found, pairs = S0, []
    for i in range(1, op.arity):
        pairs.append((found, f"(shape x{i})"))
        found = f"(bc {found} (shape x{i}))"
    yield LawCase(found, dtype, (), tuple(pairs))


def pointwise_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `pointwise`."""
    yield from _broadcast(op, D0)


def compare(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: broadcast shape, bool."""
    _same_dtype(types)
    return Type(broadcast(*(t.shape for t in types)), "bool")


def compare_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `compare`."""
    yield from _broadcast(op, str(DTYPE_ID["bool"]))


def where(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: broadcast shape; the condition is bool and the other two operands share a dtype."""
    if types[0].dtype != "bool":
        raise ShapeError(f"the condition is {types[0].dtype}, not bool")
    return Type(broadcast(*(t.shape for t in types)), _same_dtype(types[1:]))


def where_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `where`."""
    yield from _broadcast(op, "(dt x1)")


def cast(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: same shape, dtype from the attribute."""
    return Type(types[0].shape, attrs["dtype"])


def cast_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `cast`."""
    yield LawCase(S0, "a_dtype")


def from_float8(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: same shape, the float dtype from the attribute; the operand is uint8."""
    if types[0].dtype != "uint8" or not dtypes.is_float(attrs["dtype"]):
        raise ShapeError(f"8-bit floats are uint8 and become floats, not {types[0].dtype} and {attrs['dtype']}")
    return cast(op, types, attrs)


def reduce(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: reduced axes become 1."""
    shape = types[0].shape
    for axis in attrs["axes"]:
        shape = _replace(shape, axis_of(axis, len(shape)), 1)
    return Type(shape, types[0].dtype)


def reduce_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `reduce`."""
    for count in range(max(ranks, default=0) + 1):
        shape = S0
        for i in range(count):
            shape = vec_set(shape, vec_get("a_axes", i), "1")
        yield LawCase(shape, D0, (has_rank("a_axes", count),))


def arg_reduce(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the axis becomes 1; int64 indices."""
    return Type(_replace(types[0].shape, axis_of(attrs["axis"], types[0].rank), 1), "int64")


def arg_reduce_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `arg_reduce`."""
    yield LawCase(vec_set(S0, "a_axis", "1"), str(DTYPE_ID["int64"]))


def along(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of an op along one axis: that of the operand; ShapeError if the axis does not exist."""
    axis_of(attrs["axis"], types[0].rank)
    return types[0]


def same_text(op: Op, ranks: Sequence[int]) -> Cases:
    """The type of the first operand."""
    yield LawCase(S0, D0)


def _index(kind: Type) -> None:
    if dtypes.category(kind.dtype) != "int":
        raise ShapeError(f"indices are {kind.dtype}, not integers")


def along_index(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of an op that gives indices along one axis (argsort): the operand's shape, int64."""
    axis_of(attrs["axis"], types[0].rank)
    return Type(types[0].shape, "int64")


def along_index_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `along_index`."""
    yield LawCase(S0, str(DTYPE_ID["int64"]))


def matmul(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: contracts a's last axis with b's second-last; b has a's rank (leading sizes broadcast) or rank 2."""
    a, b = types
    if a.rank < 2 or b.rank not in (2, a.rank):
        raise ShapeError("matmul needs operands of rank >= 2, the second of equal rank or of rank 2")
    if a.shape[-1] != b.shape[-2]:
        sizes = a.shape[-1], b.shape[-2]
        raise ShapeError(f"contracted sizes differ: {sizes[0]} and {sizes[1]}", sizes=sizes)
    batch = a.shape[:-2] if b.rank == 2 else broadcast(a.shape[:-2], b.shape[:-2])
    return Type((*batch, a.shape[-2], b.shape[-1]), _same_dtype(types))


def matmul_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `matmul`."""
    last = f"(- (vec-length {S0}) 1)"
    yield LawCase(vec_set(S0, last, vec_get(S1, 1)), D0, (has_rank(S1, 2),))
    for r in ranks:
        if r >= 3:
            batch = [f"(max {vec_get(S0, i)} {vec_get(S1, i)})" for i in range(r - 2)]
            yield LawCase(
                vec_of([*batch, vec_get(S0, r - 2), vec_get(S1, r - 1)]), D0, (has_rank(S0, r), has_rank(S1, r))
            )


LONGEST_STEP = 1 << 31  # strides and dilations are below this, so that offsets in memory fit 64 bits


def conv_size(size: Dim, kernel: Dim, stride: int, lo: int, hi: int, dilation: int) -> Dim:
    """Number of window positions along one axis (convolution arithmetic).

    ShapeError for a stride, dilation or window below 1, for negative padding, and for steps from LONGEST_STEP on."""
    sizes = {"stride": stride, "dilation": dilation, "window": kernel}
    for name, value in sizes.items():
        if isinstance(value, int) and not 1 <= value < LONGEST_STEP:
            raise ShapeError(f"a {name} of {value} is not between 1 and {LONGEST_STEP - 1}")
    if lo < 0 or hi < 0:
        raise ShapeError(f"negative padding {lo}, {hi}", hint="slice instead")
    found = (size + lo + hi - dilation * (kernel - 1) - 1) // stride + 1
    if isinstance(found, int) and found <= 0:
        raise ShapeError(f"a window of {kernel} (dilation {dilation}) does not fit into {size} + {lo} + {hi}")
    return found


def conv(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[N, C, *S] with w[O, C/groups, *K]; pads = all low sides, then all high sides."""
    x, w = types
    n = x.rank - 2
    if n < 1 or w.rank != x.rank:
        raise ShapeError("conv needs x[N, C, ...] and w[O, C/groups, ...] of equal rank >= 3")
    groups, pads = attrs["groups"], attrs["pads"]
    if len(attrs["strides"]) != n or len(attrs["dilations"]) != n or len(pads) != 2 * n:
        raise ShapeError(f"strides, dilations and pads do not match {n} spatial axes")
    if groups < 1 or x.shape[1] != w.shape[1] * groups or (isinstance(w.shape[0], int) and w.shape[0] % groups):
        raise ShapeError(f"channels {x.shape[1]} and weight {w.shape} do not match groups={groups}")
    space = [
        conv_size(x.shape[2 + i], w.shape[2 + i], attrs["strides"][i], pads[i], pads[n + i], attrs["dilations"][i])
        for i in range(n)
    ]
    return Type((x.shape[0], w.shape[0], *space), _same_dtype(types))


def _window(size: str, kernel: str, stride: str, lo: str, hi: str, dilation: str) -> str:
    return f"(+ (/ (- (+ {size} (+ {lo} {hi})) (+ (* {dilation} (- {kernel} 1)) 1)) {stride}) 1)"


def _windowed(spatial: int, kernel: Callable[[int], str]) -> list[str]:
    return [
        _window(
            vec_get(S0, 2 + i),
            kernel(i),
            vec_get("a_strides", i),
            vec_get("a_pads", i),
            vec_get("a_pads", spatial + i),
            vec_get("a_dilations", i),
        )
        for i in range(spatial)
    ]


def conv_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `conv`."""
    for r in ranks:
        if r >= 3:
            space = _windowed(r - 2, lambda i: vec_get(S1, 2 + i))
            yield LawCase(vec_of([vec_get(S0, 0), vec_get(S1, 0), *space]), D0, (has_rank(S0, r),))


def pool(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[N, C, *S] with a window of `kernel` sizes; pads = all low sides, then all high sides."""
    x, kernel, pads = types[0], attrs["kernel"], attrs["pads"]
    n = len(kernel)
    if x.rank != n + 2 or len(attrs["strides"]) != n or len(attrs["dilations"]) != n or len(pads) != 2 * n:
        raise ShapeError(f"kernel {kernel}, strides, dilations and pads do not match {x}")
    space = [
        conv_size(x.shape[2 + i], kernel[i], attrs["strides"][i], pads[i], pads[n + i], attrs["dilations"][i])
        for i in range(n)
    ]
    return Type((*x.shape[:2], *space), x.dtype)


def pool_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `pool`."""
    for r in ranks:
        if r >= 3:
            space = _windowed(r - 2, lambda i: vec_get("a_kernel", i))
            yield LawCase(vec_of([vec_get(S0, 0), vec_get(S0, 1), *space]), D0, (has_rank(S0, r),))


def reshape(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the requested shape; the number of elements must be equal."""
    have, want = volume(types[0].shape), volume(attrs["shape"])
    if isinstance(have, int) and isinstance(want, int) and have != want:
        raise ShapeError(f"cannot reshape {types[0].shape} to {attrs['shape']}")
    return Type(attrs["shape"], types[0].dtype)


def requested_text(op: Op, ranks: Sequence[int]) -> Cases:
    """The shape of the attribute `shape`, the operand's dtype."""
    yield LawCase("a_shape", D0)


def permute(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: output axis i is input axis perm[i]."""
    perm = attrs["perm"]
    if sorted(perm) != list(range(types[0].rank)):
        raise ShapeError(f"{perm} is not a permutation of {types[0].rank} axes")
    return Type(tuple(types[0].shape[p] for p in perm), types[0].dtype)


def permute_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `permute`."""
    for r in ranks:
        yield LawCase(vec_of(vec_get(S0, vec_get("a_perm", i)) for i in range(r)), D0, (has_rank("a_perm", r),))


def broadcast_to(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the requested shape, of equal rank; sizes of 1 stretch."""
    shape = attrs["shape"]
    if len(shape) != types[0].rank or any(a not in (1, b) for a, b in zip(types[0].shape, shape)):
        sizes = [d for pair in zip(types[0].shape, shape) if pair[0] not in (1, pair[1]) for d in pair]
        raise ShapeError(f"{types[0].shape} does not broadcast to {shape}", sizes=sizes)
    return Type(shape, types[0].dtype)


def slice_(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: elements start, start+step, … below stop along one axis; 0 <= start <= stop <= size, step >= 1."""
    axis, start, stop, step = axis_of(attrs["axis"], types[0].rank), attrs["start"], attrs["stop"], attrs["step"]
    size = types[0].shape[axis]
    if not isinstance(step, int) or step < 1:
        raise ShapeError(f"slice step {step} is not a positive int", hint="flip first")
    if all(isinstance(d, int) for d in (start, stop, size)) and not 0 <= start <= stop <= size:
        raise ShapeError(f"slice {start}:{stop} is outside size {size}")
    return Type(_replace(types[0].shape, axis, (stop - start + step - 1) // step), types[0].dtype)


def slice_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `slice`."""
    size = "(/ (+ (- a_stop a_start) (- a_step 1)) a_step)"
    yield LawCase(vec_set(S0, "a_axis", size), D0)


def concat(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: sizes add along one axis; all other sizes must be equal."""
    a, b = types
    axis = axis_of(attrs["axis"], a.rank)
    if a.rank != b.rank or any(p != q for i, (p, q) in enumerate(zip(a.shape, b.shape)) if i != axis):
        sizes = [d for i, pair in enumerate(zip(a.shape, b.shape)) if i != axis and pair[0] != pair[1] for d in pair]
        raise ShapeError(f"{a.shape} and {b.shape} differ along an axis other than {axis}", sizes=sizes)
    return Type(_replace(a.shape, axis, a.shape[axis] + b.shape[axis]), _same_dtype(types))


def concat_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `concat`."""
    yield LawCase(vec_set(S0, "a_axis", f"(+ {vec_get(S0, 'a_axis')} {vec_get(S1, 'a_axis')})"), D0)


def pad(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: `lo` and `hi` constant elements before and after along one axis, both >= 0."""
    axis, lo, hi = axis_of(attrs["axis"], types[0].rank), attrs["lo"], attrs["hi"]
    if any(isinstance(d, int) and d < 0 for d in (lo, hi)):
        raise ShapeError(f"negative padding {lo}, {hi}", hint="slice instead")
    return Type(_replace(types[0].shape, axis, types[0].shape[axis] + lo + hi), types[0].dtype)


def pad_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `pad`."""
    yield LawCase(vec_set(S0, "a_axis", f"(+ {vec_get(S0, 'a_axis')} (+ a_lo a_hi))"), D0)


def windows(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: window positions along `axis`, window elements in a new last axis."""
    axis, size = axis_of(attrs["axis"], types[0].rank), attrs["size"]
    count = conv_size(types[0].shape[axis], size, attrs["stride"], 0, 0, attrs["dilation"])
    return Type((*_replace(types[0].shape, axis, count), size), types[0].dtype)


def windows_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `windows`."""
    count = _window(vec_get(S0, "a_axis"), "a_size", "a_stride", "0", "0", "a_dilation")
    yield LawCase(f"(vec-push {vec_set(S0, 'a_axis', count)} a_size)", D0)


def gather(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x with `axis` replaced by the axes of the index (NumPy's take)."""
    x, index = types
    _index(index)
    axis = axis_of(attrs["axis"], x.rank)
    return Type((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)


def gather_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `gather`."""
    for r in ranks:
        for axis in range(r):
            head = vec_of(vec_get(S0, i) for i in range(axis))
            tail = vec_of(vec_get(S0, i) for i in range(axis + 1, r))
            yield LawCase(f"(vec-append {head} {S1} {tail})", D0, (has_rank(S0, r), f"(= {axis} a_axis)"))


def gather_elements(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: shape of the index, which has x's rank (NumPy's take_along_axis)."""
    x, index = types
    _index(index)
    axis_of(attrs["axis"], x.rank)
    if index.rank != x.rank:
        raise ShapeError("the indices must have the rank of the data")
    return Type(index.shape, x.dtype)


def gather_elements_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `gather_elements`."""
    yield LawCase(S1, D0)


def scatter_elements(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x with updates (same shape as the index) written along one axis."""
    x, index, updates = types
    _index(index)
    axis_of(attrs["axis"], x.rank)
    if index.shape != updates.shape or index.rank != x.rank or x.dtype != updates.dtype:
        raise ShapeError("indices and updates must have equal shapes, the data's rank and the data's dtype")
    return x


def norm(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of x; gain and shift have the rank-1 shape [x.shape[-1]]."""
    for t in types[1:]:
        if t.shape != types[0].shape[-1:]:
            raise ShapeError(f"gain or shift is {t.shape}, not {types[0].shape[-1:]}")
    return Type(types[0].shape, _same_dtype(types))


def channel_norm(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of x[N, C, ...]; the other operands have the rank-1 shape [C]."""
    for t in types[1:]:
        if types[0].rank < 2 or t.shape != types[0].shape[1:2]:
            raise ShapeError(f"a channel value is {t.shape}, not {types[0].shape[1:2]}")
    return Type(types[0].shape, _same_dtype(types))


def linear(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[..., K] @ w[K, N] + b[N]."""
    x, w, b = types
    if w.rank != 2 or x.rank < 2 or x.shape[-1] != w.shape[0] or b.shape != w.shape[1:]:
        raise ShapeError("linear needs x[..., K] of rank >= 2, w[K, N] and b[N]")
    return Type((*x.shape[:-1], w.shape[1]), _same_dtype(types))


def linear_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `linear`."""
    yield LawCase(vec_set(S0, f"(- (vec-length {S0}) 1)", vec_get(S1, 1)), D0)


def attention(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of attention: q[..., T, D], k[..., S, D], v[..., S, E] (mask[..., T, S]) of equal rank."""
    q, k, v = types[:3]
    if not q.rank == k.rank == v.rank >= 3 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError("attention needs q[..., T, D], k[..., S, D], v[..., S, E] of equal rank >= 3")
    batch = broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    if len(types) == 4:
        scores = (*batch, q.shape[-2], k.shape[-2])
        if broadcast(types[3].shape, scores) != scores:
            raise ShapeError(f"the mask {types[3].shape} does not broadcast to {scores}")
    return Type((*batch, q.shape[-2], v.shape[-1]), _same_dtype(types))


def attention_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `attention`."""
    for r in ranks:
        if r >= 3:
            batch = [f"(max {vec_get(S0, i)} (max {vec_get(S1, i)} {vec_get(S2, i)}))" for i in range(r - 2)]
            yield LawCase(vec_of([*batch, vec_get(S0, r - 2), vec_get(S2, r - 1)]), D0, (has_rank(S0, r),))


def rope(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[..., D] with cos and sin that broadcast to it."""
    if broadcast(*(t.shape for t in types)) != types[0].shape:
        raise ShapeError("cos and sin must broadcast to x")
    if isinstance(types[0].shape[-1], int) and types[0].shape[-1] % 2:
        raise ShapeError("rope needs an even last axis")
    return Type(types[0].shape, _same_dtype(types))


def cross_entropy(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of logits[N, C] with integer target[N]: [N]."""
    logits, target = types
    _index(target)
    if logits.rank != 2 or target.shape != logits.shape[:1] or not dtypes.is_float(logits.dtype):
        raise ShapeError("cross_entropy needs floating-point logits[N, C] and target[N]")
    return Type(target.shape, logits.dtype)


def cross_entropy_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `cross_entropy`."""
    yield LawCase(S1, D0)


def recurrent(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of `recurrent` over x[T, B, I]: a vector of T * B * directions * width outputs, then the last states.

    Initial states and weights are vectors.
    """
    x, state, w = types
    hidden, width, count = attrs["hidden"], attrs["width"], attrs["layers"] * attrs["directions"]
    if (x.rank, state.rank, w.rank) != (3, 1, 1) or min(hidden, width, count) < 1 or attrs["directions"] > 2:
        raise ShapeError("recurrent needs x[T, B, I], rank-1 states, rank-1 weights, and positive sizes")
    if attrs["cell"] not in GATES or len(attrs["activations"].split()) != GATES[attrs["cell"]][1]:
        raise ShapeError(f"no recurrent cell {attrs['cell']!r} with the activations {attrs['activations']!r}")
    steps, batch, size = x.shape
    if isinstance(steps, int) and steps < 1:
        raise ShapeError("a recurrent layer needs at least one step")
    lstm, rows = attrs["cell"] == "lstm", hidden * GATES[attrs["cell"]][0]
    states = count * batch * (width + (hidden if lstm else 0))
    every = rows * (width + 2) + (width * hidden if width != hidden else 0)
    every += 3 * hidden if "peephole" in attrs["variant"] else 0
    inputs = attrs["directions"] * rows * (size + (attrs["layers"] - 1) * attrs["directions"] * width)
    if state.shape[0] != states or w.shape[0] != inputs + count * every:
        sizes = (states, state.shape[0], inputs + count * every, w.shape[0])
        raise ShapeError(
            "the states have {1} elements, not {0}, or the weights {3}, not {2}".format(*sizes), sizes=sizes
        )
    return Type((steps * batch * attrs["directions"] * width + states,), _same_dtype(types))


def recurrent_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `recurrent`."""
    rows = f"(* {vec_get(S0, 0)} (* {vec_get(S0, 1)} (* a_directions a_width)))"
    yield LawCase(vec_of([f"(+ {rows} {vec_get(S1, 0)})"]), D0)


def unpack(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of bytes that hold 8 // bits numbers each along one axis: the axis grows, dtype from the attribute."""
    (x,), bits, block = types, attrs["bits"], attrs["block"]
    axis, size = axis_of(attrs["axis"], x.rank), x.shape[attrs["axis"]]
    forms = ("unsigned", "signed", "e2m1") if bits == 4 else ("unsigned", "signed")
    if bits not in (2, 4) or attrs["form"] not in forms:
        raise ShapeError(
            f"no packed numbers of {bits} bits and form {attrs['form']!r}", hint=f"forms: {', '.join(forms)}"
        )
    if x.dtype != "uint8" or not dtypes.is_float(attrs["dtype"]):
        raise ShapeError(f"packed numbers are uint8 and become floats, not {x.dtype} and {attrs['dtype']}")
    if block < 1 or (isinstance(size, int) and size % block):
        raise ShapeError(f"{size} bytes are no multiple of the block {block}", sizes=(size,))
    return Type(_replace(x.shape, axis, size * (8 // bits)), attrs["dtype"])


def unpack_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `unpack`."""
    yield LawCase(vec_set(S0, "a_axis", f"(* {vec_get(S0, 'a_axis')} (/ 8 a_bits))"), "a_dtype")


def dequantize(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of q with scales and zero points for blocks: shape of q, dtype of the scales."""
    q, scale, zero = types
    if not q.rank == scale.rank == zero.rank or not dtypes.is_float(scale.dtype):
        raise ShapeError("dequantize needs operands of equal rank and floating-point scales")
    for size, block in zip(q.shape, scale.shape):
        if block not in (1, size) and (
            not isinstance(size, int) or not isinstance(block, int) or not block or size % block
        ):
            raise ShapeError(f"{block} scales do not divide {size} numbers", sizes=(size, block))
    if zero.shape not in (scale.shape, (1,) * q.rank):
        raise ShapeError(f"zero points are {zero.shape}, not {scale.shape} or all 1")
    return Type(q.shape, scale.dtype)


def dequantize_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Egglog cases of the type law `dequantize`."""
    yield LawCase(S0, "(dt x1)")


def same(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of an op that keeps the first operand's type; ShapeError if a named axis does not exist."""
    for axis in (*attrs.get("axes", ()), *((attrs["axis"],) if "axis" in attrs else ())):
        axis_of(axis, types[0].rank)
    return types[0]


#: Type laws by name.
LAWS: dict[str, TypeLaw] = {
    "leaf": TypeLaw(leaf, leaf_text),
    "pointwise": TypeLaw(pointwise, pointwise_text, keeps_rank=True),
    "compare": TypeLaw(compare, compare_text, keeps_rank=True),
    "where": TypeLaw(where, where_text, keeps_rank=True),
    "cast": TypeLaw(cast, cast_text, keeps_rank=True),
    "from_float8": TypeLaw(from_float8, cast_text, keeps_rank=True),
    "reduce": TypeLaw(reduce, reduce_text, keeps_rank=True),
    "arg_reduce": TypeLaw(arg_reduce, arg_reduce_text),
    "along": TypeLaw(along, same_text, 1, keeps_rank=True),
    "along_index": TypeLaw(along_index, along_index_text),
    "matmul": TypeLaw(matmul, matmul_text, 2),
    "conv": TypeLaw(conv, conv_text, 3),
    "pool": TypeLaw(pool, pool_text, 3),
    "reshape": TypeLaw(reshape, requested_text),
    "permute": TypeLaw(permute, permute_text, keeps_rank=True),
    "broadcast_to": TypeLaw(broadcast_to, requested_text, keeps_rank=True),
    "slice": TypeLaw(slice_, slice_text, 1, keeps_rank=True),
    "concat": TypeLaw(concat, concat_text, 1, keeps_rank=True),
    "pad": TypeLaw(pad, pad_text, 1, keeps_rank=True),
    "windows": TypeLaw(windows, windows_text),
    "gather": TypeLaw(gather, gather_text),
    "gather_elements": TypeLaw(gather_elements, gather_elements_text),
    "scatter_elements": TypeLaw(scatter_elements, same_text),
    "norm": TypeLaw(norm, same_text, 1),
    "channel_norm": TypeLaw(channel_norm, same_text, 2),
    "linear": TypeLaw(linear, linear_text, 2),
    "attention": TypeLaw(attention, attention_text, 3),
    "rope": TypeLaw(rope, same_text, 1),
    "cross_entropy": TypeLaw(cross_entropy, cross_entropy_text),
    "recurrent": TypeLaw(recurrent, recurrent_text),
    "unpack": TypeLaw(unpack, unpack_text, 1, keeps_rank=True),
    "dequantize": TypeLaw(dequantize, dequantize_text, keeps_rank=True),
    "same": TypeLaw(same, same_text, 1, keeps_rank=True),
}


def infer(op: Op, types: Sequence[Type], attrs: Attrs) -> Type:
    """Result type of an op. ShapeError names the op and its operands; no size is negative."""
    if len(types) != op.arity:
        raise ShapeError(f"{op.name} takes {op.arity} operands, not {len(types)}")
    if op.floats_only and any(not dtypes.is_float(t.dtype) for t in types):
        raise ShapeError(f"{op.name} needs floating-point operands, not {', '.join(map(str, types))}")
    try:
        found = LAWS[op.law].infer(op, tuple(types), attrs)
        if any(isinstance(d, int) and d < 0 for d in found.shape):
            raise ShapeError(f"negative dimension in {found.shape}")
        return found
    except ShapeError as error:
        if not error.where:
            error.where = f"{op.name}({', '.join(map(str, types))}){dict(attrs) if attrs else ''}"
        raise


__all__ = ["DTYPE_ID", "GATES", "LAWS", "Law", "LawCase", "TypeLaw", "axis_of", "broadcast", "conv_size", "has_rank", "infer",
           "vec_get", "vec_of"]  # fmt: skip
