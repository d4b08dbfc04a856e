"""Parts of random ONNX graphs (`onnx_graphs`) that signatures do not describe: quantization in its forms, control flow
with values that decide, decisions behind arithmetic, and arithmetic on sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .onnx_graphs import BF16, Graph

Part = Callable[[Graph], bool]
PARTS: list[Part] = []
INT4 = {np.dtype(ml_dtypes.int4): (-8, 7), np.dtype(ml_dtypes.uint4): (0, 15)}


def part(f: Part) -> Part:
    """Register a part."""
    PARTS.append(f)
    return f


def floats(g: Graph, low: int = 0, high: int = 4) -> str:
    """A value of a float dtype that quantization takes at the graph's opset."""
    kinds = [np.dtype(np.float32)] + ([np.dtype(np.float16), BF16] if g.opset >= 19 else [])
    return g.some([g.float] if g.float in kinds else kinds, low, high)


def scales(g: Graph, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Positive scales, powers of two or not."""
    base = g.rng.choice((0.25, 0.5, 0.1, 0.03, 1.0))
    return np.asarray(base * g.np.integers(1, 4, tuple(shape))).astype(dtype)


def layouts(g: Graph, shape: Sequence[int]) -> tuple[list[int], dict[str, int]]:
    """(shape of scales, attributes): per tensor, per axis or per block."""
    rank, how = len(shape), g.rng.random()
    if not rank or how < 0.4:
        return g.rng.choice(([], [1])), {}
    axis = g.axis(rank)
    if how < 0.75 or g.opset < 21:
        return ([shape[axis]], {"axis": axis}) if g.opset >= 13 else ([], {})
    block = g.rng.randint(1, shape[axis])
    lined = [-(-d // block) if i == axis % rank else d for i, d in enumerate(shape)]
    return lined, {"axis": axis, "block_size": block}


def zero(g: Graph, shape: Sequence[int], dtype: Any) -> str:
    """An initializer of zero points, or no operand."""
    if g.rng.random() < 0.25:
        return ""
    ends = np.iinfo(dtype) if dtype not in INT4 else None
    low, high = INT4[dtype] if ends is None else (max(ends.min, -130), min(ends.max, 140))
    x = np.zeros(tuple(shape)) if g.rng.random() < 0.3 else g.np.integers(low, high, tuple(shape), endpoint=True)
    return g.add(np.asarray(x).astype(dtype), known=g.rng.random() < 0.85)


@part
def quantize(g: Graph) -> bool:
    """QuantizeLinear, mostly with DequantizeLinear behind it."""
    x = floats(g)
    kinds = [np.uint8, np.int8, *([np.uint16, np.int16] if g.opset >= 21 else [])]
    shape, attrs = layouts(g, g.values[x].shape)
    kind = np.dtype(g.rng.choice(kinds))
    z = zero(g, shape, kind)
    more = dict(attrs)
    if not z and g.opset >= 21 and g.rng.random() < 0.7:
        more["output_dtype"] = helper.np_dtype_to_tensor_dtype(kind)
    s = g.add(scales(g, shape, g.values[x].dtype), known=True)
    if not g.put("QuantizeLinear", [x, s, z], 1, more):
        return False
    q = g.steps[-1].proto.output[0]
    if g.values[q].dtype != (g.values[z].dtype if z else g.values[q].dtype) or g.rng.random() < 0.3:
        return True
    return g.put("DequantizeLinear", [q, s, z], 1, attrs) or True


@part
def dequantize(g: Graph) -> bool:
    """DequantizeLinear of integers, 4-bit weights and int32 sums among them."""
    kinds = [np.uint8, np.int8, np.int32, *([np.uint16, np.int16, *INT4] if g.opset >= 21 else [])]
    kind = np.dtype(g.rng.choice(kinds))
    shape = g.shape(0, 3)
    if kind in INT4:
        x = g.add(g.np.integers(*INT4[kind], tuple(shape), endpoint=True).astype(kind), known=True)
    else:
        x = g.some([kind], 0, 4)
    lined, attrs = layouts(g, g.values[x].shape)
    dtype = np.dtype(np.float32) if g.opset < 19 or g.float == np.float64 else g.float
    z = "" if kind == np.int32 else zero(g, lined, kind)
    if not g.put("DequantizeLinear", [x, g.add(scales(g, lined, dtype), known=True), z], 1, attrs):
        return False
    w = g.steps[-1].proto.output[0]
    if g.values[w].ndim == 2 and g.rng.random() < 0.7:
        k = g.values[w].shape[0]
        return (
            g.put("MatMul", [g.add(g.draw([*g.shape(0, 2), g.rng.choice(g.sizes), k], dtype), known=False), w], 1, {})
            or True
        )
    return True


@part
def dynamic(g: Graph) -> bool:
    """DynamicQuantizeLinear and a product of its result."""
    x = g.some([np.dtype(np.float32)], 1, 4)
    if not g.put("DynamicQuantizeLinear", [x], 3, {}):
        return False
    q, _, z = g.steps[-1].proto.output
    if g.values[q].ndim < 2 or g.rng.random() < 0.3:
        return True
    n, kind = g.rng.choice(g.sizes), np.dtype(g.rng.choice((np.uint8, np.int8)))
    w = g.add(g.draw([g.values[q].shape[-1], n], kind), known=True)
    points = g.rng.choice(([], [n], None))
    return g.put("MatMulInteger", [q, w, z, "" if points is None else zero(g, points, kind)], 1, {}) or True


@part
def products_of_bytes(g: Graph) -> bool:
    """MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv."""
    op = g.rng.choice(("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"))
    a, b, y = (np.dtype(g.rng.choice((np.uint8, np.int8))) for _ in range(3))
    if "Conv" in op:
        count, group = g.rng.choice((1, 2)), g.rng.choice((1, 1, 2))
        kernel = [g.rng.choice((1, 2, 3)) for _ in range(count)]
        outside = group * g.rng.choice((1, 2))
        x = g.add(g.draw([g.rng.choice((1, 2)), group * 2, *(g.rng.choice((3, 5, 6)) for _ in kernel)], a), known=False)
        w = g.add(g.draw([outside, 2, *kernel], b), known=g.rng.random() < 0.8)
        attrs: dict[str, Any] = {"group": group} if group > 1 else {}
        attrs |= g.rng.choice(({}, {"strides": [2] * count}, {"pads": [1] * (2 * count)}, {"auto_pad": "SAME_UPPER"}, {"dilations": [2] * count},
                               {"pads": [0, 1] * count, "strides": [g.rng.choice((1, 3)) for _ in kernel]}))  # fmt: skip
    else:
        k, outside, attrs = g.rng.choice(g.sizes), g.rng.choice(g.sizes), {}
        x = g.add(g.draw([*g.shape(1, 3), k], a), known=False)
        w = g.add(g.draw([k, outside], b), known=g.rng.random() < 0.8)
    channels = g.rng.choice(([], [outside])) if op != "ConvInteger" else []
    if op.endswith("Integer"):
        return g.put(op, [x, w, zero(g, [], a), zero(g, channels, b)], 1, attrs)
    f = np.float32
    whole = lambda shape, d: zero(g, shape, d) or g.add(np.zeros(tuple(shape), d), known=True)
    names = [
        x,
        g.add(scales(g, [], f), True),
        whole([], a),
        w,
        g.add(scales(g, channels, f), True),
        whole(channels, b),
        g.add(scales(g, [], f) * 8, True),
        whole([], y),
    ]
    if op == "QLinearConv" and g.rng.random() < 0.5:
        names.append(g.add(g.np.integers(-300, 300, outside).astype(np.int32), True))
    return g.put(op, names, 1, attrs)


# ---------------------------------------------------------------- decisions
@part
def decision(g: Graph) -> bool:
    """Arithmetic, and an operator whose result a last bit decides."""
    x = g.some([g.float], 1, 4)
    number = g.add(np.asarray(g.rng.choice((0.1, 0.3, 7.0, 49.0, 3.0, 0.5, 1.5)), g.float), known=True)
    if not g.put(g.rng.choice(("Mul", "Div", "Add", "Sub")), [x, number], 1, {}):
        return False
    y = g.steps[-1].proto.output[0]
    op = g.rng.choice(
        ("Floor", "Ceil", "Round", "Cast", "Equal", "Less", "ArgMax", "ArgMin", "TopK", "Mod", "Sign", "Hardmax")
    )
    if op == "Cast":
        return g.put(op, [y], 1, {"to": g.rng.choice((6, 7, 3, 9))}) or True
    if op in ("Equal", "Less"):
        return g.put(op, [y, g.rng.choice((x, number))], 1, {}) or True
    if op in ("ArgMax", "ArgMin", "Hardmax"):
        last = {"select_last_index": g.rng.choice((0, 1))} if g.opset >= 12 and op != "Hardmax" else {}
        return g.put(op, [y], 1, {"axis": g.axis(g.values[y].ndim), **last}) or True
    if op == "TopK":
        axis = g.axis(g.values[y].ndim)
        k = g.add(np.asarray([g.rng.randint(1, g.values[y].shape[axis])], np.int64), known=True)
        return g.put(op, [y, k], 2, {"axis": axis, "largest": g.rng.choice((0, 1))}) or True
    if op == "Mod":
        return g.put(op, [y, number], 1, {"fmod": 1}) or True
    return g.put(op, [y], 1, {}) or True


@part
def sizes(g: Graph) -> bool:
    """Arithmetic on sizes that makes the shape of Reshape, Expand, Slice, Range or ConstantOfShape."""
    x = g.some([g.float], 1, 4)
    rank = g.values[x].ndim
    if not g.put("Shape", [x], 1, {}):
        return False
    s = g.steps[-1].proto.output[0]
    at = g.add(np.asarray(g.rng.randrange(rank), np.int64), known=True)
    whole = lambda v: g.add(np.asarray(v, np.int64), known=True)
    if not g.put("Gather", [s, at], 1, {"axis": 0}):
        return False
    one = g.steps[-1].proto.output[0]
    op = g.rng.choice(("Add", "Mul", "Sub", "Div", "Mod"))
    if not g.put(op, [one, whole(g.rng.choice((1, 2, 3)))], 1, {}):
        return True
    other = g.steps[-1].proto.output[0]
    use = g.rng.choice(("Range", "Slice", "Expand", "ConstantOfShape", "Cast", "Reshape", "Less"))
    if use == "Range":
        return g.put(use, [whole(0), other, whole(g.rng.choice((1, 2)))], 1, {}) or True
    if use == "Cast":
        return (
            g.put(use, [other], 1, {"to": helper.np_dtype_to_tensor_dtype(g.float)})
            and g.put("Mul", [x, g.steps[-1].proto.output[0]], 1, {})
        ) or True
    if use == "Less":
        return (
            g.put(use, [other, whole(g.rng.choice((2, 4)))], 1, {}) and conditional(g, g.steps[-1].proto.output[0])
        ) or True
    if use == "Reshape":
        return (
            g.put("Concat", [g.add(np.asarray([-1], np.int64), True), line(g, one)], 1, {"axis": 0})
            and g.put(use, [x, g.steps[-1].proto.output[0]], 1, {})
        ) or True
    made = line(g, other)
    if use == "Slice":
        return g.put(use, [x, whole([g.rng.choice((0, 1))]), made, whole([g.axis(rank)])], 1, {}) or True
    if use == "Expand":
        return (
            g.put("Concat", [made, s], 1, {"axis": 0}) and g.put(use, [x, g.steps[-1].proto.output[0]], 1, {})
        ) or True
    return g.put(use, [made], 1, {}) or True


def line(g: Graph, scalar: str) -> str:
    """The scalar as a vector of one number."""
    g.put("Reshape", [scalar, g.add(np.asarray([1], np.int64), known=True)], 1, {})
    return str(g.steps[-1].proto.output[0])


# ---------------------------------------------------------------- control flow
def body(g: Graph, start: Sequence[str], kinds: Sequence[Any], tag: str) -> tuple[list[Any], str]:
    """A few elementwise nodes from the first name on, which may read the others; (nodes, name of the result)."""
    nodes, now = [], start[0]
    for k in range(g.rng.randint(1, 2)):
        op = g.rng.choice(("Add", "Mul", "Sub", "Max", "Neg", "Floor", "Relu", "Abs"))
        operands = [now] if op in ("Neg", "Floor", "Relu", "Abs") else [now, g.rng.choice(list(start))]
        nodes.append(helper.make_node(op, operands, [f"{tag}{k}"]))
        now = f"{tag}{k}"
    return nodes, now


def info(name: str, dtype: Any, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def conditional(g: Graph, condition: str = "") -> bool:
    """If, with a condition that is known, or given."""
    x = g.some([np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)], 0, 3)
    dtype = g.values[x].dtype
    others = [n for n, v in g.values.items() if v.dtype == dtype and v.shape in ((), g.values[x].shape)][:3] or [x]
    condition = condition or g.add(np.asarray(g.rng.choice((True, False))), known=True)
    tag = f"s{len(g.steps)}"
    branches = {}
    for which in ("then", "else"):
        nodes, out = body(g, [x, *others], [dtype], f"{tag}{which}")
        branches[f"{which}_branch"] = helper.make_graph(nodes, which, [], [info(out, dtype)])
    return g.put("If", [condition], 1, branches, [x, *others])


part(conditional)


@part
def loop(g: Graph) -> bool:
    """Loop over a state, with a trip count and a condition that the iteration decides; at times with a scan output."""
    x = g.some([np.dtype(np.float32), np.dtype(np.float64)], 0, 3)
    dtype, tag = g.values[x].dtype, f"s{len(g.steps)}"
    others = [n for n, v in g.values.items() if v.dtype == dtype and v.shape in ((), g.values[x].shape)][:2]
    nodes, out = body(g, [f"{tag}x", *others], [dtype], tag)
    limit = numpy_helper.from_array(np.asarray(g.rng.choice((0, 1, 2, 9)), np.int64), f"{tag}limit")
    how = g.rng.choice(("always", "iteration", "data"))
    if how == "always":
        nodes.append(helper.make_node("Identity", [f"{tag}c"], [f"{tag}go"]))
    elif how == "iteration":
        nodes.append(helper.make_node("Less", [f"{tag}i", f"{tag}limit"], [f"{tag}go"]))
    else:
        nodes += [helper.make_node("ReduceSum", [out], [f"{tag}sum"], keepdims=0),
                  helper.make_node("Less", [f"{tag}sum", f"{tag}bound"], [f"{tag}go"])]  # fmt: skip
    outs, scanned = [info(f"{tag}go", bool), info(out, dtype)], g.rng.random() < 0.5
    if scanned:
        nodes.append(helper.make_node("Identity", [out], [f"{tag}y"]))
        outs.append(info(f"{tag}y", dtype))
    initial = [limit, numpy_helper.from_array(np.asarray(5.0, dtype), f"{tag}bound")]
    made = helper.make_graph(
        nodes, "body", [info(f"{tag}i", np.int64, []), info(f"{tag}c", bool, []), info(f"{tag}x", dtype)], outs, initial
    )
    trips = g.rng.choice((g.add(np.asarray(g.rng.choice((0, 1, 3, 5)), np.int64), known=True), ""))
    go = g.rng.choice((g.add(np.asarray(True), known=True), g.add(np.asarray(g.rng.random() < 0.7), known=True), ""))
    if not trips and how != "iteration":  # for ever, perhaps
        return False
    return g.put("Loop", [trips, go, x], 1 + scanned, {"body": made}, others)


@part
def scan(g: Graph) -> bool:
    """Scan of one state over one or two inputs, in any direction and along any axis."""
    x = g.some([np.dtype(np.float32), np.dtype(np.float64)], 1, 3)
    v, tag = g.values[x], f"s{len(g.steps)}"
    axis = g.axis(v.ndim)
    item = np.take(v, 0, axis)
    state = g.add(g.draw(item.shape, v.dtype))
    nodes = [helper.make_node(g.rng.choice(("Add", "Max", "Mul", "Sub")), [f"{tag}h", f"{tag}x"], [f"{tag}n"]),
             helper.make_node(g.rng.choice(("Neg", "Identity", "Floor")), [f"{tag}n"], [f"{tag}y"])]  # fmt: skip
    made = helper.make_graph(
        nodes,
        "body",
        [info(f"{tag}h", v.dtype), info(f"{tag}x", v.dtype)],
        [info(f"{tag}n", v.dtype), info(f"{tag}y", v.dtype)],
    )
    attrs: dict[str, Any] = {"body": made, "num_scan_inputs": 1, "scan_input_axes": [axis]}
    if g.rng.random() < 0.5:
        attrs["scan_input_directions"] = [g.rng.choice((0, 1))]
    if g.rng.random() < 0.5:
        attrs |= {"scan_output_directions": [g.rng.choice((0, 1))], "scan_output_axes": [g.axis(item.ndim + 1)]}
    return g.put("Scan", [state, x], 2, attrs)


__all__ = ["INT4", "PARTS", "TensorProto"]
