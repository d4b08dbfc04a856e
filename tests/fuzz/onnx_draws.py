"""Random nodes of ONNX operators: attributes, shapes and operands, a function per operator in one table."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Skip(Exception):
    """Raised when the drawn node does not exist at this opset."""


class Draw:
    """Random choices for one node: operands are inputs, or initializers where a loader must know them."""

    def __init__(self, seed: int) -> None:
        self.rng, self.np = random.Random(seed), np.random.default_rng(seed)
        self.opset = self.rng.choice((13, 14, 16, 17, 18, 19, 20, 21, 22, 23))
        self.operands: list[Array | None] = []
        self.known: set[int] = set()
        self.attrs: dict[str, Any] = {}
        self.outputs = 1

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def shape(self, low: int = 1, high: int = 4, largest: int = 5) -> list[int]:
        return [self.rng.randint(1, largest) for _ in range(self.rng.randint(low, high))]

    def floats(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        x = self.np.standard_normal(tuple(shape))
        return np.asarray(np.round(2 * x) / 2 if self.pick(0, 1) else x).astype(dtype)

    def ints(self, shape: Sequence[int], low: int = -4, high: int = 5, dtype: Any = np.int64) -> Array:
        return np.asarray(self.np.integers(low, high, tuple(shape))).astype(dtype)

    def give(self, *arrays: Array | None) -> None:
        self.operands += arrays

    def know(self, value: Any, dtype: Any = np.int64) -> None:
        self.known.add(len(self.operands))
        self.operands.append(None if value is None else np.asarray(value, dtype))

    def maybe(self, name: str, *options: Any) -> Any:
        """An attribute, or its default (None)."""
        if self.pick(0, 0, 1):
            return None
        self.attrs[name] = self.pick(*options)
        return self.attrs[name]

    def axis(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank)

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        cut = self.rng.randint(0, len(shape)) if self.pick(0, 1) else 0
        return [self.pick(1, d, d) for d in shape[cut:]]

    def axes(self, rank: int) -> list[int]:
        found = self.rng.sample(range(rank), self.rng.randint(1, rank))
        return [a - rank if self.pick(0, 1) else a for a in found]


NODES: dict[str, Callable[[Draw], None]] = {}


def node(*names: str) -> Callable[[Callable[[Draw], None]], Callable[[Draw], None]]:
    def install(f: Callable[[Draw], None]) -> Callable[[Draw], None]:
        NODES.update(dict.fromkeys(names, f))
        return f

    return install


@node("Abs", "Neg", "Sign", "Exp", "Floor", "Ceil", "Round", "Sigmoid", "Tanh", "Erf", "Relu", "Softsign", "Softplus", "Sin", "Cos",
      "Tan", "Atan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Atanh", "Identity", "HardSwish", "IsNaN", "Sqrt", "Log", "Reciprocal",
      "Mish")  # fmt: skip
def _unary(d: Draw) -> None:
    x = d.floats(d.shape(0))
    if d.pick(0, 0, 1):
        x.reshape(-1)[:1] = d.pick(np.nan, np.inf, -np.inf, -0.0)
    d.give(x)


@node("Add", "Sub", "Mul", "Max", "Min", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "PRelu")
def _binary(d: Draw) -> None:
    s = d.shape(0)
    make = d.ints if d.pick(0, 0, 1) else d.floats
    d.give(make(s), make(d.broadcast(s)))


@node("Div", "Mod", "Pow", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "And", "Or", "Xor")
def _arith(d: Draw) -> None:
    s, op = d.shape(0), d.op
    if op in ("And", "Or", "Xor"):
        d.give(d.ints(s, 0, 2).astype(bool), d.ints(d.broadcast(s), 0, 2).astype(bool))
    elif op == "BitShift":
        d.attrs["direction"] = d.pick("LEFT", "RIGHT")
        kind = d.pick(np.uint8, np.uint32, np.uint64)
        d.give(d.ints(s, 0, 9, kind), d.ints(d.broadcast(s), 0, 5, kind))
    elif op.startswith("Bitwise"):
        kind = d.pick(np.int32, np.uint8, np.int64)
        d.give(d.ints(s, 0, 99, kind), d.ints(d.broadcast(s), 0, 99, kind))
    elif op == "Pow":
        if d.pick(0, 1):
            d.give(d.ints(s), d.ints(d.broadcast(s), 0, 4))
        elif d.pick(0, 1):
            d.give(d.floats(s), d.ints(d.broadcast(s), 0, 4).astype(d.pick(np.int64, np.int32, np.float32)))
        else:
            d.give(np.abs(d.floats(s)) + 0.25, d.floats(d.broadcast(s)))
    else:
        whole = d.pick(0, 1)
        y = d.ints(d.broadcast(s)) if whole else d.floats(d.broadcast(s))
        y = np.where(y == 0, 1, y).astype(y.dtype)
        if op == "Mod":
            fmod = int(not whole or d.pick(0, 1))
            d.attrs["fmod"] = fmod
        d.give(d.ints(s, -20, 20) if whole else d.floats(s), y)


@node("Sum", "Mean")
def _variadic(d: Draw) -> None:
    s = d.shape(1)
    d.give(*(d.floats(d.broadcast(s)) for _ in range(d.pick(1, 2, 3))))


@node("Elu", "Celu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Shrink", "Gelu")
def _activation(d: Draw) -> None:
    d.give(d.floats(d.shape()))
    for name in {"Elu": ("alpha",), "Celu": ("alpha",), "Selu": ("alpha", "gamma"), "LeakyRelu": ("alpha",),
                 "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Shrink": ("bias", "lambd")}.get(d.op, ()):  # fmt: skip
        d.maybe(name, 0.5, 0.25, 1.5)
    if d.op == "Gelu":
        d.opset = max(d.opset, 20)
        d.maybe("approximate", "none", "tanh")


@node("Clip")
def _clip(d: Draw) -> None:
    make, kind = (d.ints, np.int64) if d.pick(0, 0, 1) else (d.floats, np.float32)
    d.give(make(d.shape(0)))
    limits = [None if d.pick(0, 0, 1) else np.asarray(v, kind) for v in (d.pick(-1, 0), d.pick(1, 0, -2))]
    for v in limits:
        if d.pick(0, 1):
            d.know(v, kind)
        else:
            d.give(v)


@node("Softmax", "LogSoftmax", "Hardmax")
def _softmax(d: Draw) -> None:
    s = d.shape()
    d.give(d.floats(s))
    d.maybe("axis", d.axis(len(s)))


@node("Where")
def _where(d: Draw) -> None:
    s = d.shape(0)
    d.give(d.ints(d.broadcast(s), 0, 2).astype(bool), d.floats(s), d.floats(d.broadcast(s)))


@node("Cast")
def _cast(d: Draw) -> None:
    kinds = {np.float32: 1, np.uint8: 2, np.int8: 3, np.int32: 6, np.int64: 7, bool: 9, np.float16: 10, np.float64: 11}
    source, target = d.pick(*kinds), d.pick(*kinds)
    x = (
        d.ints(d.shape(0), 0, 9).astype(source)
        if source in (np.uint8, bool)
        else (d.floats(d.shape(0)) * 3).astype(source)
    )
    if target is np.uint8:
        x = np.abs(x) if x.dtype != bool else x
    d.give(x)
    d.attrs["to"] = kinds[target]


@node("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
      "ReduceLogSumExp")  # fmt: skip
def _reduce(d: Draw) -> None:
    s = d.shape()
    x = d.floats(s)
    if d.op == "ReduceLogSum":
        x = np.abs(x) + 0.5
    if d.pick(0, 0, 1) and d.op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"):
        x = d.ints(s, dtype=d.pick(np.int32, np.int64))
    d.give(x)
    d.maybe("keepdims", 0, 1)
    axes = None if d.pick(0, 0, 0, 1) else d.axes(len(s))
    if d.op == "ReduceSum" or d.opset >= 18:
        if axes is not None or d.pick(0, 1):
            d.know(axes if axes is not None else [])
        d.maybe("noop_with_empty_axes", 0, 1)
    elif axes is not None:
        d.attrs["axes"] = axes


@node("ArgMax", "ArgMin")
def _arg(d: Draw) -> None:
    s = d.shape()
    d.give(d.floats(s))
    d.maybe("axis", d.axis(len(s)))
    d.maybe("keepdims", 0, 1)
    d.maybe("select_last_index", 0, 1)


@node("CumSum")
def _cumsum(d: Draw) -> None:
    s = d.shape()
    d.give(d.floats(s))
    d.know(d.axis(len(s)))
    d.maybe("exclusive", 0, 1)
    d.maybe("reverse", 0, 1)


@node("TopK")
def _topk(d: Draw) -> None:
    s = d.shape()
    axis = d.axis(len(s))
    d.give(d.np.permutation(np.arange(np.prod(s))).reshape(s).astype(np.float32))
    d.know([d.rng.randint(1, s[axis])])
    d.attrs["axis"] = axis
    d.maybe("largest", 0, 1)
    d.outputs = 2


@node("MatMul")
def _matmul(d: Draw) -> None:
    *batch, m, k = d.shape(2, 4)
    n = d.rng.randint(1, 4)
    form = d.pick("full", "matrix", "vector", "row", "broad")
    a, b = [*batch, m, k], {"full": [*batch, k, n], "matrix": [k, n], "vector": [k], "row": [*batch, k, n],
                            "broad": [*(d.pick(1, v) for v in batch), k, n]}[form]  # fmt: skip
    d.give(d.floats([k] if form == "row" else a), d.floats(b))


@node("Gemm")
def _gemm(d: Draw) -> None:
    m, k, n = (d.rng.randint(1, 5) for _ in range(3))
    a, b = d.maybe("transA", 0, 1), d.maybe("transB", 0, 1)
    d.maybe("alpha", 0.5, 2.0)
    d.maybe("beta", 0.5, 0.0)
    d.give(d.floats([k, m] if a else [m, k]), d.floats([n, k] if b else [k, n]))
    if d.pick(0, 1, 1):
        d.give(d.floats(d.pick([m, n], [n], [1, n], [m, 1], [1], [])))


def _space(d: Draw, count: int, kernel: Sequence[int]) -> None:
    d.maybe("strides", [d.pick(1, 2, 3) for _ in range(count)])
    d.maybe("dilations", [d.pick(1, 1, 2) for _ in range(count)])
    if d.pick(0, 0, 1):
        if d.op not in ("Conv", "ConvTranspose"):
            d.attrs.pop("dilations", None)  # of which other runtimes take no notice here
        d.attrs["auto_pad"] = d.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    elif d.pick(0, 1):
        d.attrs["pads"] = [d.rng.randint(0, max(0, k - 1)) for k in (*kernel, *kernel)]


@node("Conv", "ConvTranspose")
def _conv(d: Draw) -> None:
    count, group = d.pick(1, 1, 2, 2, 3), d.pick(1, 1, 2, 3)
    inside, outside = d.rng.randint(1, 2), d.rng.randint(1, 2)
    kernel = [d.pick(1, 2, 3) for _ in range(count)]
    space = [d.rng.randint(3, 6) for _ in range(count)]
    x = d.floats([d.pick(1, 2), group * inside, *space])
    w = d.floats([group * outside, inside, *kernel] if d.op == "Conv" else [group * inside, outside, *kernel])
    d.give(x, w)
    if d.pick(0, 1):
        d.give(d.floats([group * outside]))
    if group > 1 or d.pick(0, 1):
        d.attrs["group"] = group
    if d.pick(0, 1):
        d.attrs["kernel_shape"] = kernel
    _space(d, count, kernel)
    if d.op == "ConvTranspose":
        strides, dilations = d.attrs.get("strides", [1] * count), d.attrs.get("dilations", [1] * count)
        if d.pick(0, 0, 1):
            d.attrs["output_padding"] = [d.rng.randint(0, max(s, q) - 1) for s, q in zip(strides, dilations)]


@node("AveragePool", "MaxPool", "LpPool")
def _pool(d: Draw) -> None:
    count = d.pick(1, 2, 2, 3)
    kernel = [d.pick(1, 2, 3) for _ in range(count)]
    d.give(d.floats([d.pick(1, 2), d.pick(1, 3), *(d.rng.randint(3, 7) for _ in range(count))]))
    d.attrs["kernel_shape"] = kernel
    if d.op in ("AveragePool", "LpPool"):
        d.opset = max(d.opset, 19)
    _space(d, count, kernel)
    if "auto_pad" not in d.attrs:
        d.maybe("ceil_mode", 0, 1)
    if d.op == "AveragePool":
        d.maybe("count_include_pad", 0, 1)
    if d.op == "LpPool":
        d.maybe("p", 1, 2, 3)
    if d.op == "MaxPool" and d.pick(0, 0, 1):
        d.outputs = 2
        d.maybe("storage_order", 0, 1)


@node("GlobalAveragePool", "GlobalMaxPool")
def _global(d: Draw) -> None:
    d.give(d.floats(d.shape(3, 5)))


@node("BatchNormalization")
def _batch(d: Draw) -> None:
    s = d.shape(2, 4)
    d.give(d.floats(s), *(d.floats([s[1]]) for _ in range(3)), np.abs(d.floats([s[1]])) + 0.1)
    d.maybe("epsilon", 0.1)


@node("InstanceNormalization")
def _instance(d: Draw) -> None:
    s = d.shape(3, 5)
    d.give(d.floats(s), d.floats([s[1]]), d.floats([s[1]]))
    d.attrs["epsilon"] = 0.1


@node("LayerNormalization", "RMSNormalization")
def _layer(d: Draw) -> None:
    d.opset = max(d.opset, 23 if d.op[0] == "R" else 17)
    s = d.shape()
    axis = d.axis(len(s))
    rest = s[axis:] if axis >= 0 else s[len(s) + axis :]
    d.attrs["axis"] = axis
    d.attrs["epsilon"] = 0.1
    d.give(d.floats(s), d.floats(d.pick(rest, rest, [d.pick(1, v) for v in rest])))
    if d.op[0] == "L":
        if d.pick(0, 1):
            d.give(d.floats(rest))
        d.outputs = d.pick(1, 1, 3)


@node("GroupNormalization")
def _group(d: Draw) -> None:
    d.opset = max(d.opset, 21)
    groups = d.pick(1, 2, 3)
    channels = groups * d.pick(1, 2)
    d.give(d.floats([d.pick(1, 2), channels, *d.shape(1, 2)]), d.floats([channels]), d.floats([channels]))
    d.attrs |= {"num_groups": groups, "epsilon": 0.1}


@node("LpNormalization", "MeanVarianceNormalization", "LRN")
def _norms(d: Draw) -> None:
    s = d.shape(4, 4)
    d.give(d.floats(s))
    if d.op == "LpNormalization":
        d.maybe("axis", d.axis(4))
        d.maybe("p", 1, 2)
    elif d.op == "LRN":
        d.attrs["size"] = d.pick(1, 2, 3, 5)
        d.maybe("alpha", 0.5)
        d.maybe("beta", 0.5)
        d.maybe("bias", 2.0)
    else:
        d.maybe("axes", [0, 2, 3], [1], [0, 1, 3])


@node("Reshape")
def _reshape(d: Draw) -> None:
    s = d.shape(1, 4)
    d.give(d.floats(s))
    form = d.pick("zeros", "minus", "flat", "mixed")
    asked = {"zeros": [0] * len(s), "minus": [-1], "flat": [int(np.prod(s))], "mixed": [0, -1]}[form]
    d.know(asked)


@node("Transpose")
def _transpose(d: Draw) -> None:
    s = d.shape(0)
    d.give(d.floats(s))
    if d.pick(0, 1, 1):
        d.attrs["perm"] = d.rng.sample(range(len(s)), len(s))


@node("Expand", "Tile")
def _expand(d: Draw) -> None:
    s = d.shape(1)
    d.give(d.floats(s))
    if d.op == "Tile":
        d.know([d.pick(1, 1, 2, 3) for _ in s])
    else:
        d.know(
            [*([d.pick(1, 2)] if d.pick(0, 0, 1) else []), *(d.pick(1, v) if v > 1 else d.pick(1, 3) for v in s)][
                d.pick(0, 0, 1) :
            ]
        )


@node("Concat")
def _concat(d: Draw) -> None:
    s = d.shape()
    axis = d.axis(len(s))
    d.attrs["axis"] = axis
    for _ in range(d.pick(1, 2, 3)):
        s[axis] = d.rng.randint(1, 4)
        d.give(d.floats(s))


@node("Split")
def _split(d: Draw) -> None:
    s = d.shape()
    axis = d.axis(len(s))
    d.maybe("axis", axis)
    size = s[d.attrs.get("axis", 0)]
    d.give(d.floats(s))
    cut = d.rng.randint(1, size)
    if d.pick(0, 1):
        parts = [cut] if cut == size else [cut, size - cut]
        d.know(parts)
        d.outputs = len(parts)
    else:
        d.outputs = cut
        if d.opset >= 18:
            d.attrs["num_outputs"] = cut
        elif size % cut:
            raise Skip


@node("Slice")
def _slice(d: Draw) -> None:
    s = d.shape()
    d.give(d.floats(s))
    axes = d.axes(len(s))
    ends = [0, 1, -1, 2, -2, 3, 7, -9, 2**62, -(2**62)]
    steps = [d.pick(1, 1, 2, -1, -2, 3) for _ in axes]
    d.know([d.pick(*ends) for _ in axes])
    d.know([d.pick(*ends) for _ in axes])
    d.know(axes)
    if d.pick(0, 1, 1):
        d.know(steps)


@node("Pad")
def _pad(d: Draw) -> None:
    s = d.shape()
    d.give(d.floats(s))
    mode = d.pick("constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else []))
    if mode != "constant" or d.pick(0, 1):
        d.attrs["mode"] = mode
    axes = d.axes(len(s)) if d.opset >= 18 and d.pick(0, 1) else None
    sizes = [s[a] for a in axes] if axes is not None else s
    most = [v - 1 if mode == "reflect" else 2 for v in sizes]
    d.know(
        [
            d.rng.randint(-1 if mode == "constant" and v > 2 else 0, max(0, m))
            for v, m in (*zip(sizes, most), *zip(sizes, most))
        ]
    )
    if mode == "constant" and d.pick(0, 1):
        d.know(1.5, np.float32)
    elif axes is not None:
        d.give(None)
    if axes is not None:
        d.know(axes)


@node("Gather", "GatherElements")
def _gather(d: Draw) -> None:
    s = d.shape()
    axis = d.axis(len(s))
    d.attrs["axis"] = axis
    shape = d.shape(0, 2) if d.op == "Gather" else [d.rng.randint(1, v) for v in s]
    d.give(d.floats(s), d.ints(shape, -s[axis], s[axis], d.pick(np.int64, np.int32)))


@node("GatherND")
def _gather_nd(d: Draw) -> None:
    s = d.shape(1, 4)
    batch = d.rng.randint(0, len(s) - 1) if d.pick(0, 1) else 0
    depth = d.rng.randint(1, len(s) - batch)
    lead = [*s[:batch], *d.shape(1, 2, 3)]
    index = np.stack([d.ints(lead, -v, v) for v in s[batch : batch + depth]], -1)
    d.give(d.floats(s), index)
    if batch:
        d.attrs["batch_dims"] = batch


@node("ScatterElements")
def _scatter(d: Draw) -> None:
    s = d.shape()
    axis = d.axis(len(s))
    shape = [d.rng.randint(1, v) for v in s]
    d.attrs["axis"] = axis
    mode = d.pick("none", "add", "mul", "max", "min") if d.opset >= 18 else "none"
    if mode != "none":
        d.attrs["reduction"] = mode
        index = d.ints(shape, -s[axis], s[axis])
    else:
        line = np.argsort(d.np.random([*(v for i, v in enumerate(shape) if i != axis % len(s)), s[axis]]), -1)[
            ..., : shape[axis]
        ]
        index = np.moveaxis(line, -1, axis % len(s)) - d.pick(0, s[axis])
    d.give(d.floats(s), index.astype(np.int64), d.floats(shape))


@node("ScatterND")
def _scatter_nd(d: Draw) -> None:
    s = d.shape(1, 3)
    depth = d.rng.randint(1, len(s))
    count = d.rng.randint(1, int(np.prod(s[:depth])))
    flat = d.np.permutation(int(np.prod(s[:depth])))[:count]
    index = np.stack(np.unravel_index(flat, s[:depth]), -1).astype(np.int64)
    d.give(d.floats(s), index, d.floats([count, *s[depth:]]))
    if d.opset >= 18:
        d.maybe("reduction", "none", "add", "mul", "max", "min")


@node("OneHot")
def _one_hot(d: Draw) -> None:
    s = d.shape(0, 3)
    depth = d.rng.randint(1, 5)
    d.give(d.ints(s, -depth - 1, depth + 1))
    d.know(depth)
    d.give(d.floats([2]))
    d.maybe("axis", d.rng.randrange(-len(s) - 1, len(s) + 1))


@node("Trilu", "EyeLike")
def _trilu(d: Draw) -> None:
    s = d.shape(2, 4) if d.op == "Trilu" else d.shape(2, 2)
    d.give(d.floats(s))
    k = d.pick(-2, -1, 0, 1, 2, 7)
    if d.op == "EyeLike":
        d.attrs["k"] = k
    else:
        if d.pick(0, 1):
            d.know(k)
        d.maybe("upper", 0, 1)


@node("DepthToSpace", "SpaceToDepth")
def _depth(d: Draw) -> None:
    b = d.pick(1, 2, 3)
    n, c, h, w = d.shape(4, 4, 2)
    d.give(d.floats([n, c * b * b, h, w] if d.op[0] == "D" else [n, c, h * b, w * b]))
    d.attrs["blocksize"] = b
    if d.op[0] == "D":
        d.maybe("mode", "DCR", "CRD")


@node("Squeeze", "Unsqueeze", "Flatten", "Size", "Shape")
def _shapes(d: Draw) -> None:
    s = [d.pick(1, 1, 2, 3) for _ in range(d.rng.randint(1, 4))]
    d.give(d.floats(s))
    if d.op == "Squeeze" and d.pick(0, 1):
        ones = [i for i, v in enumerate(s) if v == 1]
        d.know([a - len(s) if d.pick(0, 1) else a for a in d.rng.sample(ones, d.rng.randint(0, len(ones)))])
    if d.op == "Unsqueeze":
        d.know(d.rng.sample([a - (len(s) + 2) * d.pick(0, 1) for a in range(len(s) + 2)], 2))
    if d.op == "Flatten":
        d.maybe("axis", d.rng.randint(-len(s), len(s)))
    if d.op == "Shape" and d.opset >= 15:
        d.maybe("start", -9, -2, -1, 0, 1, 9)
        d.maybe("end", -9, -2, -1, 0, 1, 9)


@node("CenterCropPad")
def _center(d: Draw) -> None:
    d.opset = max(d.opset, 18)
    s = d.shape()
    axes = d.axes(len(s)) if d.pick(0, 1) else None
    d.give(d.floats(s))
    d.know([d.rng.randint(1, 7) for _ in (axes if axes is not None else s)])
    if axes is not None:
        d.attrs["axes"] = axes


@node("Resize")
def _resize(d: Draw) -> None:
    d.opset = max(d.opset, 18)
    s = [1, d.pick(1, 2), *d.shape(1, 2, 6)]
    mode = d.pick("nearest", "linear", "cubic")
    d.attrs["mode"] = mode
    d.maybe(
        "coordinate_transformation_mode",
        "half_pixel",
        "asymmetric",
        "align_corners",
        "pytorch_half_pixel",
        "half_pixel_symmetric",
    )
    if mode == "nearest":
        d.maybe("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        d.maybe("exclude_outside", 0, 1)
        d.maybe("cubic_coeff_a", -0.5)
    if mode != "nearest":
        d.maybe("antialias", 0, 1)
    d.give(d.floats(s), None)
    if d.pick(0, 1):
        d.know([1, 1, *(d.pick(0.5, 1.0, 2.0, 1.5, 3.0, 0.7) for _ in s[2:])], np.float32)
    else:
        d.give(None)
        sizes = [d.rng.randint(1, 8) for _ in s[2:]]
        if d.pick(0, 0, 1):
            d.attrs["keep_aspect_ratio_policy"] = d.pick("not_larger", "not_smaller")
            d.attrs["axes"] = list(range(2, len(s)))
            d.know(sizes)
        else:
            d.know([*s[:2], *sizes])


@node("Einsum")
def _einsum(d: Draw) -> None:
    sizes = {c: d.rng.randint(1, 4) for c in "abcde"}
    terms = ["".join(d.rng.sample("abcde", d.rng.randint(1, 3))) for _ in range(d.pick(1, 2, 2, 3))]
    if d.pick(0, 0, 1):
        terms[0] += terms[0][0]
    letters = sorted({*"".join(terms)})
    out = "".join(d.rng.sample(letters, d.rng.randint(0, min(3, len(letters)))))
    dots = d.pick(0, 0, 0, 1)
    lead = d.shape(1, 2, 3) if dots else []
    d.attrs["equation"] = ",".join(("..." if dots else "") + t for t in terms) + (
        "" if d.pick(0, 0, 0, 1) else "->" + ("..." if dots else "") + out
    )
    d.give(*(d.floats([*lead, *(sizes[c] for c in t)]) for t in terms))


@node("ReverseSequence")
def _reverse(d: Draw) -> None:
    s = d.shape(2, 3)
    time_axis = d.pick(0, 1)
    d.attrs |= {"time_axis": time_axis, "batch_axis": 1 - time_axis}
    d.give(d.floats(s), d.ints([s[1 - time_axis]], 1, s[time_axis] + 1))


@node("RNN", "GRU", "LSTM")
def _recurrent(d: Draw) -> None:
    gates, states = {"RNN": (1, 1), "GRU": (3, 1), "LSTM": (4, 2)}[d.op]
    d.opset = max(d.opset, 14)
    steps, batch, size, hidden = (d.rng.randint(1, 3) for _ in range(4))
    kind = d.pick("forward", "reverse", "bidirectional")
    ways = 2 if kind == "bidirectional" else 1
    d.attrs |= {"hidden_size": hidden, "direction": kind}
    if d.op == "GRU":
        d.maybe("linear_before_reset", 0, 1)
    d.give(
        d.floats([steps, batch, size]), d.floats([ways, gates * hidden, size]), d.floats([ways, gates * hidden, hidden])
    )
    d.give(d.floats([ways, 2 * gates * hidden]) if d.pick(0, 1) else None, None)
    if d.pick(0, 1):
        d.give(*(d.floats([ways, batch, hidden]) for _ in range(states)))
        if d.op == "LSTM" and d.pick(0, 1):
            d.give(d.floats([ways, 3 * hidden]))
    d.outputs = 1 + states


@node("Attention")
def _attention(d: Draw) -> None:
    d.opset = 23
    batch, kv, share, rows, columns, size, width = (
        d.pick(1, 2),
        d.pick(1, 2),
        d.pick(1, 2),
        *(d.rng.randint(1, 4) for _ in range(4)),
    )
    heads = kv * share
    if d.pick(0, 0, 1):
        d.attrs |= {"q_num_heads": heads, "kv_num_heads": kv}
        d.give(
            d.floats([batch, rows, heads * size]),
            d.floats([batch, columns, kv * size]),
            d.floats([batch, columns, kv * width]),
        )
    else:
        d.give(
            d.floats([batch, heads, rows, size]),
            d.floats([batch, kv, columns, size]),
            d.floats([batch, kv, columns, width]),
        )
    d.maybe("is_causal", 0, 1)
    d.maybe("scale", 0.5)
    d.maybe("softcap", 2.0)
    past = d.rng.randint(1, 3) if d.pick(0, 0, 1) else 0
    if d.pick(0, 0, 1):
        shape = d.pick(
            [rows, columns + past],
            [1, 1, rows, columns + past],
            [batch, heads, rows, columns + past],
            [batch, 1, rows, columns + past],
        )
        d.give(
            d.floats(shape)
            if d.pick(0, 1)
            else np.maximum(d.ints(shape, 0, 3) > 0, np.eye(rows, columns + past, dtype=bool))
        )
    elif past:
        d.give(None)
    if past:
        d.give(d.floats([batch, kv, past, size]), d.floats([batch, kv, past, width]))
        d.outputs = 3
    if d.pick(0, 0, 0, 1):
        d.outputs = 4
        d.maybe("qk_matmul_output_mode", 0, 1, 2, 3)


@node("RotaryEmbedding")
def _rotary(d: Draw) -> None:
    d.opset = 23
    batch, heads, rows, half = (d.rng.randint(1, 3) for _ in range(4))
    size = 2 * half
    full = size + d.pick(0, 0, 2)
    if full != size:
        d.attrs["rotary_embedding_dim"] = size
    d.maybe("interleaved", 0, 1)
    if d.pick(0, 1):
        d.give(d.floats([batch, heads, rows, full]))
    else:
        d.attrs["num_heads"] = heads
        d.give(d.floats([batch, rows, heads * full]))
    if d.pick(0, 1):
        d.give(d.floats([5, half]), d.floats([5, half]), d.ints([batch, rows], 0, 5))
    else:
        d.give(d.floats([batch, rows, half]), d.floats([batch, rows, half]))


@node("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(d: Draw) -> None:
    n, c = d.rng.randint(1, 4), d.rng.randint(1, 4)
    more = d.shape(0, 2, 3)
    d.give(d.floats([n, c, *more]), d.ints([n, *more], 0, c))
    if d.pick(0, 1):
        d.give(np.abs(d.floats([c])) + 0.5)
    d.maybe("reduction", "mean", "sum", "none")
    if d.pick(0, 0, 1):
        d.attrs["ignore_index"] = d.rng.randrange(c)


@node("QuantizeLinear", "DequantizeLinear")
def _quantize(d: Draw) -> None:
    s = d.shape(2, 4)
    kind = d.pick(np.uint8, np.int8)
    axis = d.axis(len(s))
    line = [s[axis]] if d.pick(0, 1) else []
    d.give(
        d.floats(s) * 10 if d.op[0] == "Q" else d.ints(s, 0, 100, kind),
        (np.abs(d.floats(line)) + 0.1).astype(np.float32),
        d.ints(line, 0, 9, kind),
    )
    if line:
        d.attrs["axis"] = axis


@node("MatMulInteger", "DynamicQuantizeLinear")
def _whole(d: Draw) -> None:
    if d.op == "DynamicQuantizeLinear":
        d.give(d.floats(d.shape(1)))
        d.outputs = 3
        return
    m, k, n = (d.rng.randint(1, 4) for _ in range(3))
    d.give(d.ints([m, k], 0, 200, np.uint8), d.ints([k, n], 0, 200, np.uint8))
    if d.pick(0, 1):
        d.give(d.ints(d.pick([], [m]), 0, 9, np.uint8), d.ints(d.pick([], [n]), 0, 9, np.uint8))


@node("Range")
def _range(d: Draw) -> None:
    kind = d.pick(np.int64, np.float32, np.int32)
    for v in (d.pick(-3, 0, 1), d.pick(-5, 4, 7), d.pick(1, 2, -1, -2)):
        d.know(v, kind)


@node("Compress")
def _compress(d: Draw) -> None:
    s = d.shape()
    d.give(d.floats(s))
    axis = d.axis(len(s))
    whole = d.pick(0, 1)
    d.know(d.ints([int(np.prod(s)) if whole else s[axis]], 0, 2).astype(bool), bool)
    if not whole:
        d.attrs["axis"] = axis
