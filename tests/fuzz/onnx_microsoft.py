"""Operators of ONNX Runtime (domain com.microsoft) with random attributes, shapes and optional operands: our loader
against ONNX Runtime.

`python -m tests.fuzz.onnx_microsoft [--seconds S] [--seed N] [--ops A,B]`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError, UnsupportedError
from tensor_graphs.models.onnx.load import load_onnx

from .onnx_draws import Array, Draw
from .onnx_nodes import compared

BATCH, TOKENS, PAST, TOTAL = "batch", "tokens", "past", "total"


class NodeDraw(Draw):
    """Random choices for one node whose operands have named axes, and some of whose results are not compared."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.domain, self.names = "com.microsoft", dict[int, Sequence[str]]()
        self.free = bool(self.pick(0, 1))
        self.valid: dict[int, Callable[[Array], Array]] = {}  # result -> its part that is defined
        self.unused: set[int] = set()  # results without a name
        self.kind: Any = np.float32

    def put(self, shape: Sequence[int], names: Sequence[str] = (), dtype: Any = None, scale: float = 1.0) -> None:
        """A float operand whose axes have these names ("": none)."""
        self.names[len(self.operands)] = names
        self.give((self.np.standard_normal(tuple(shape)) * scale).astype(dtype or self.kind))

    def put_ints(self, array: Any, names: Sequence[str] = (), dtype: Any = np.int32) -> None:
        """An integer operand whose axes have these names."""
        self.names[len(self.operands)] = names
        self.give(np.asarray(array).astype(dtype))

    def weigh(self, shape: Sequence[int], dtype: Any = None, scale: float = 1.0) -> None:
        """A float operand that is an initializer."""
        self.known.add(len(self.operands))
        self.give((self.np.standard_normal(tuple(shape)) * scale).astype(dtype or self.kind))

    def skip(self, count: int = 1) -> None:
        """Omitted operands."""
        self.give(*[None] * count)

    def half(self) -> None:
        """Now and then all floats have 16 bits."""
        self.kind = self.pick(np.float32, np.float32, np.float32, np.float16)

    def codes(self, shape: Sequence[int]) -> Array:
        return np.asarray(self.np.integers(0, 256, tuple(shape))).astype(np.uint8)


def model(d: NodeDraw, op: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The node as a model, and its inputs."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(d.operands)]
    while names and not names[-1]:
        names.pop()
    outs = ["" if k in d.unused else f"o{k}" for k in range(d.outputs)]
    made = helper.make_node(op, names, outs, domain=d.domain, **d.attrs)
    inputs, given, initial = [], {}, []
    for k, (name, x) in enumerate(zip(names, d.operands)):
        if not name or x is None:
            continue
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        if k in d.known:
            initial.append(numpy_helper.from_array(x, name))
            continue
        sizes: list[Any] = list(x.shape)
        if d.free:
            sizes = [n or s for n, s in zip([*d.names.get(k, ()), *[""] * len(sizes)], sizes)]
        inputs.append(helper.make_tensor_value_info(name, kind, sizes))
        given[name] = x
    graph = helper.make_graph([made], "g", inputs, [onnx.ValueInfoProto(name=o) for o in outs if o], initial)
    opsets = [helper.make_opsetid("", d.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def reference(one: onnx.ModelProto, given: dict[str, Array], optimize: bool = False) -> list[Array]:
    """ONNX Runtime's results."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(one.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, given)]


def agree(a: Array, b: Array) -> bool:
    """Equal up to rounding; integers up to 1, where a product or a quotient was rounded."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "iu":
        return bool((np.abs(a.astype(int) - b.astype(int)) <= 1).all()) and bool((a == b).mean() > 0.9)
    half = a.dtype in (np.float16, ml_dtypes.bfloat16)
    return np.allclose(a.astype("f8"), b.astype("f8"), rtol=1e-2 if half else 2e-4, atol=2e-2 if half else 1e-4, equal_nan=True)  # fmt: skip


def tried(seed: int, op: str, folder: Path) -> str:
    """'' where the loader agrees with ONNX Runtime; else what is wrong, or why nothing was compared ("-")."""
    d = NodeDraw(crc32(f"{op} {seed}".encode()))
    NODES[op](d)
    one, given = model(d, op)
    try:
        want = reference(one, given)
    except Exception as error:
        return f"- ONNX Runtime: {str(error)[:200]}"
    outputs = [o for o in range(d.outputs) if o not in d.unused]
    for info, w in zip(one.graph.output, want):
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(w.dtype), [None] * w.ndim)
        )
    file = folder / "m.onnx"
    file.write_bytes(one.SerializeToString())
    message = f"{op} free={d.free} {d.attrs} {[None if x is None else (x.dtype.name, x.shape, x.tolist() if x.size < 9 else '') for x in d.operands]}"
    try:
        with np.errstate(all="ignore"):
            graph = load_onnx(file)
            sizes = {str(n): s for i in graph.inputs for n, s in zip(i.shape, given[i.attr("name")].shape) if str(n) != str(s)}  # fmt: skip
            found = evaluate(graph.bind(sizes), given)
    except UnsupportedError as error:
        return f"- unsupported: {error.missing}"
    except TensorGraphsError as error:
        return f"{message}\n  refused: {error}"
    except Exception as error:
        return f"{message}\n  raised {type(error).__name__}: {error}"
    for k, f, w in zip(outputs, found, want, strict=True):
        part = d.valid.get(k, lambda x: x)
        if f.shape != w.shape or not agree(part(f), part(w)):
            return f"{message}\n  output {k}: {f.dtype}{f.shape} {part(f).ravel()[:8]}\n  for   {w.dtype}{w.shape} {part(w).ravel()[:8]}"
    return ""


# ---------------------------------------------------------------- draws
def _activation(d: NodeDraw) -> None:
    d.half()
    d.put(d.shape(1, 3), [BATCH])


def _biased(d: NodeDraw, always: bool = True) -> None:
    d.half()
    shape = [d.pick(1, 2, 5), d.pick(1, 3), 4 * d.pick(1, 2)]
    d.put(shape, [BATCH, TOKENS])
    if always or d.pick(0, 1):
        d.put(shape[-1:])


def _quick_gelu(d: NodeDraw) -> None:
    _activation(d)
    d.maybe("alpha", 1.0, 0.5, 1.702)


def _fused_matmul(d: NodeDraw) -> None:
    rank = d.pick(2, 3, 4)
    lead = [d.pick(1, 2, 3) for _ in range(rank - 2)]
    rows, inner, columns = (d.pick(1, 2, 5) for _ in range(3))
    for side, shape in (("A", [*lead, rows, inner]), ("B", [*lead, inner, columns])):
        if d.maybe(f"trans{side}", 0, 1):
            shape[-2:] = shape[:-3:-1]
        if rank > 2 and d.maybe(f"transBatch{side}", 0, 1):
            shape = [shape[-2], *shape[:-2], shape[-1]]
        d.put(shape)
    d.maybe("alpha", 0.5, 2.0)


def _fused_gemm(d: NodeDraw) -> None:
    rows, inner, columns = (d.pick(1, 2, 5) for _ in range(3))
    d.put([inner, rows] if d.maybe("transA", 0, 1) else [rows, inner])
    d.put([columns, inner] if d.maybe("transB", 0, 1) else [inner, columns])
    if d.pick(0, 1):
        d.put(d.pick([columns], [1, columns], [rows, columns]))
    d.maybe("alpha", 0.5, 2.0)
    d.maybe("beta", 0.5, 2.0)
    kind = d.maybe("activation", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid")
    if kind in ("LeakyRelu", "HardSigmoid"):
        d.attrs["activation_alpha"] = d.pick(0.1, 0.3)
    if kind == "HardSigmoid":
        d.attrs["activation_beta"] = d.pick(0.1, 0.3)


def _fused_conv(d: NodeDraw) -> None:
    groups = d.pick(1, 1, 2)
    size, channels = d.pick(5, 6), 2 * groups
    d.attrs |= {"group": groups, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    d.put([d.pick(1, 2), channels, size, size])
    d.weigh([4, 2, 3, 3])
    d.weigh([4]) if d.pick(0, 1) else d.skip()
    if d.pick(0, 1):
        d.put([d.operands[0].shape[0], 4, size, size])  # type: ignore[union-attr]
    kind = d.maybe("activation", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")
    values = {"LeakyRelu": [0.2], "Clip": [-0.5, 0.75], "HardSigmoid": [0.25, 0.4]}
    if kind in values:
        d.attrs["activation_params"] = values[kind]


def _skip_norm(d: NodeDraw, rms: bool = False) -> None:
    d.half()
    shape = [d.pick(1, 2, 3), d.pick(1, 4), 8 * d.pick(1, 2)]
    d.put(shape, [BATCH, TOKENS])
    names, own = d.pick(([BATCH, TOKENS], shape), (["", TOKENS], [1, *shape[1:]]), ([TOKENS], shape[1:]))
    d.put(own, names)
    d.weigh(shape[-1:])
    if not rms:
        d.weigh(shape[-1:]) if d.pick(0, 1) else d.skip()
    if d.pick(0, 1):
        d.weigh(shape[-1:])
    d.maybe("epsilon", 1e-5, 1e-2)
    if d.pick(0, 1):
        d.outputs, d.unused = 4, {1, 2}


def _simplified(d: NodeDraw) -> None:
    d.half()
    d.domain = d.pick("", "com.microsoft") if False else ""
    shape = [d.pick(1, 2, 3), d.pick(1, 4), 8 * d.pick(1, 2)]
    d.put(shape, [BATCH, TOKENS])
    d.weigh(shape[-1:])
    d.attrs["axis"] = -1
    d.maybe("epsilon", 1e-5, 1e-2)
    d.outputs = d.pick(1, 2)


def _older_norm(d: NodeDraw) -> None:
    """As ONNX Runtime writes it into files of a version of ONNX that does not have the operator."""
    _simplified(d)
    d.opset, d.outputs = d.pick(13, 16), 1
    if d.pick(0, 1):
        d.weigh(d.operands[1].shape)  # type: ignore[union-attr]


def _embed(d: NodeDraw) -> None:
    batch, tokens, width = d.pick(1, 2, 3), d.pick(1, 4), 8
    ids = lambda high: d.ints((batch, tokens), 0, high)
    d.put_ints(ids(11), [BATCH, TOKENS])
    segments = d.pick(0, 1)
    d.put_ints(ids(2), [BATCH, TOKENS]) if segments else d.skip()
    d.weigh((11, width))
    d.weigh((9, width))
    d.weigh((2, width)) if segments else d.skip()
    d.weigh((width,))
    d.weigh((width,))
    d.put_ints(ids(2), [BATCH, TOKENS]) if d.pick(0, 1) else d.skip()
    if d.pick(0, 1):
        d.put_ints(ids(9), [BATCH, TOKENS])
    d.maybe("epsilon", 1e-5)
    d.outputs = d.pick(2, 3)


def _rotary(d: NodeDraw) -> None:
    d.half()
    batch, count, tokens, half = d.pick(1, 2, 3), d.pick(1, 2, 3), d.pick(1, 2, 5), d.pick(2, 4, 8)
    partial = d.pick(0, 0, 1)
    size = 4 * half if partial else 2 * half
    if partial:
        d.attrs |= {"rotary_embedding_dim": 2 * half, "num_heads": count}
    elif d.pick(0, 1):
        d.attrs["num_heads"] = count
    if d.pick(0, 1):
        d.put([batch, tokens, count * size], [BATCH, TOKENS])
    else:
        d.put([batch, count, tokens, size], [BATCH, "", TOKENS])
    if d.pick(0, 1):
        d.put_ints([d.pick(0, 1, 3)], dtype=np.int64)
    else:
        d.put_ints(d.ints((batch, tokens), 0, 9), [BATCH, TOKENS], np.int64)
    d.weigh((9, half))
    d.weigh((9, half))
    d.maybe("interleaved", 0, 1)
    d.maybe("scale", 1.0)


def _nbits(d: NodeDraw) -> None:
    d.half()
    bits, block = d.pick(2, 4, 4, 4, 8), d.pick(16, 32, 64, 128)
    inputs = d.pick(block, 2 * block, 3 * block, block + 8, block - 3, 5 * block // 2)
    outputs, blocks = d.pick(1, 3, 8, 17), -(-inputs // block)
    d.attrs |= {"K": inputs, "N": outputs, "bits": bits, "block_size": block}
    d.put([*d.pick([], [2], [2, 1]), d.pick(1, 3), inputs], ["batch"], scale=0.2)
    for array in (d.codes((outputs, blocks, block * bits // 8)), None):
        if array is not None:
            d.know(array, np.uint8)
    d.weigh(d.pick((outputs, blocks), (outputs, blocks)), scale=0.1)
    zeros = d.pick("none", "packed", "float")
    if zeros == "packed":
        d.know(d.codes((outputs, -(-blocks * bits // 8))), np.uint8)
    elif zeros == "float":
        d.weigh((outputs, blocks), scale=4.0)
    else:
        d.skip()
    d.skip()
    if d.pick(0, 1):
        d.weigh((outputs,))


def _gather_blocks(d: NodeDraw) -> None:
    d.half()
    typed = d.pick("", "", "int4", "uint4")
    bits, block = 4 if typed else d.pick(4, 8), d.pick(16, 32)
    inputs, rows = d.pick(block, 2 * block, 3 * block, block + 8), d.pick(3, 9)
    blocks = -(-inputs // block)
    d.attrs |= {"block_size": block, "gather_axis": d.pick(0, 0, -2), "quantize_axis": d.pick(1, 1, -1)}
    make = lambda *shape: d.np.integers(*((-8, 8) if typed == "int4" else (0, 16)), shape).astype(getattr(ml_dtypes, typed))  # fmt: skip
    if typed:
        d.know(make(rows, inputs), getattr(ml_dtypes, typed))
    else:
        d.attrs["bits"] = bits
        d.know(d.codes((rows, inputs * bits // 8)), np.uint8)
    d.put_ints(d.ints(d.pick((2,), (2, 3), ()), -rows, rows), [BATCH], d.pick(np.int32, np.int64))
    d.weigh((rows, blocks))
    if d.pick(0, 1) and typed:
        d.know(make(rows, blocks), getattr(ml_dtypes, typed))
    elif d.pick(0, 1):
        d.know(d.codes((rows, -(-blocks * bits // 8))), np.uint8) if not typed else None


def _dequantize_blocks(d: NodeDraw) -> None:
    d.domain, d.opset = "", 21
    kind = d.pick("int4", "uint4", "int8", "uint8")
    made = getattr(ml_dtypes, kind, None) or np.dtype(kind)
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[kind]
    make = lambda shape: d.np.integers(low, high, shape).astype(made)
    axis, block = d.pick(0, 1), d.pick(0, 2, 4, 16)
    large = 1 if "4" in kind else d.pick(1, 1, 75)  # smaller ones of 8 bits are constants
    shape = [d.pick(2, 4, 6) * large, d.pick(2, 6) * large * (3 if large > 1 else 1)]
    if block:
        shape[axis] = block * d.pick(1, 2, 3) * large
        scales = [-(-s // block) if i == axis else s for i, s in enumerate(shape)]
        d.attrs |= {"axis": d.pick(axis, axis - 2), "block_size": block}
    else:
        scales = d.pick([], [shape[axis]])
        d.attrs["axis"] = axis
    d.know(make(shape), made)
    d.weigh(scales, d.pick(np.float32, np.float16))
    if d.pick(0, 1):
        d.know(d.pick(0, 1, 1) * make(scales), made)


def _lengths(d: NodeDraw, batch: int, tokens: int, past: int) -> Array:
    """Positions of the last token of each row."""
    if tokens > 1 and past == 0:  # a first prompt, padded on the right
        return d.ints((batch,), 0, tokens) if d.pick(0, 1) else np.full((batch,), tokens - 1)
    least = tokens - 1 if past else 0
    return d.ints((batch,), least, past + tokens) if d.pick(0, 1) and batch > 1 and tokens == 1 else np.full((batch,), past + tokens - 1)  # fmt: skip


def _group_query(d: NodeDraw) -> None:
    d.half()
    shared, each, size = d.pick(1, 2), d.pick(1, 2, 3), d.pick(16, 32)
    count, batch = shared * each, d.pick(1, 1, 2, 3)
    past = d.pick(0, 0, 3, 6)
    d.free = d.free and past > 0  # no free dimension is 0
    tokens = d.pick(1, 4) if not past or batch == 1 else 1
    buffer = d.pick(0, 0, 1) if past > tokens else 0
    d.attrs |= {"num_heads": count, "kv_num_heads": shared}
    if d.pick(0, 1):
        d.put([batch, tokens, (count + 2 * shared) * size], [BATCH, TOKENS])
        d.skip(2)
    else:
        for heads in (count, shared, shared):
            d.put([batch, tokens, heads * size], [BATCH, TOKENS])
    if past or d.pick(0, 1):
        for _ in range(2):
            d.put([batch, shared, past, size], [BATCH, "", PAST])
    else:
        d.skip(2)
    if buffer:  # past and present are one buffer with room
        held = past - tokens - d.pick(0, 1) if tokens + 1 < past else past - tokens
        last = np.full((batch,), held + tokens - 1)
        total, d.free = d.pick(held + tokens, past), False
    else:
        last, total = _lengths(d, batch, tokens, past), past + tokens
    d.put_ints(last, [BATCH])
    d.known.add(len(d.operands))
    d.put_ints([total] if d.pick(0, 1) else total)
    if d.free:
        d.known.discard(len(d.operands) - 1)
    if d.maybe("do_rotary", 1):
        half = d.pick(size // 2, 8)
        d.weigh((16, half))
        d.weigh((16, half))
        d.maybe("rotary_interleaved", 0, 1)
        if d.pick(0, 0, 1):
            start = np.maximum(last - tokens + 1, 0)
            d.put_ints(start[:, None] + np.arange(tokens), [BATCH, TOKENS], np.int64)
        else:
            d.skip()
    else:
        d.skip(3)
    d.put([d.pick(1, batch), d.pick(1, count), tokens, total]) if d.pick(
        0, 0, 1
    ) and not d.free and not buffer else d.skip()
    if d.pick(0, 0, 1):
        d.weigh((count,))
    elif d.pick(0, 0, 1):
        d.attrs["smooth_softmax"] = 1
    d.maybe("scale", 0.3)
    d.maybe("softcap", 1.5)
    d.maybe("local_window_size", 1, 2, 4)
    d.outputs = 3
    ends = [int(e) + 1 for e in last]
    real = lambda x: np.concatenate([x[b, : min(tokens, e)].ravel() for b, e in enumerate(ends)])
    kept = lambda x: np.concatenate([x[b, :, :e].ravel() for b, e in enumerate(ends)])
    d.valid = {0: real, 1: kept, 2: kept}


def _mask_and_bias(d: NodeDraw, batch: int, count: int, tokens: int, length: int, forms: Sequence[str], past: bool, mask: int, bias: int) -> None:  # fmt: skip
    """Draw the operand `mask_index` (at the position `mask`, in one of `forms`) and the attention bias (at `bias`)."""
    form = d.pick("", *forms)
    d.maybe("mask_filter_value", -10000.0, -5.0)
    while len(d.operands) < mask:
        d.skip()
    ends = d.ints((batch,), 1, length + 1)
    if form == "lengths":
        d.put_ints(ends, [BATCH])
    elif form == "spans":
        d.put_ints(np.concatenate([ends, d.ints((batch,), 0, 1)]))
        d.free = False
    elif form in ("keys", "pairs"):
        seen = d.ints((batch, length) if form == "keys" else (batch, tokens, length), 0, 2)
        if d.attrs.get("mask_filter_value") != -5.0:  # where all keys are masked, -10000 leaves few digits of a score
            seen[..., 0] = 1
        d.put_ints(seen)
        d.free = False
    else:
        d.skip()
    if bias < 9 and d.pick(0, 0, 1):
        while len(d.operands) < bias:
            d.skip()
        added = (d.pick(1, batch), d.pick(1, count), tokens, length)
        d.operands.insert(bias, d.floats(added)) if len(d.operands) > bias else d.give(d.floats(added))
        d.free = False


def _multi_head(d: NodeDraw) -> None:
    batch, count, size = d.pick(1, 2, 3), d.pick(1, 2, 3), 8
    tokens, wide, past = d.pick(1, 4), count * 8, 0
    form = d.pick("apart", "apart", "packed", "pairs", "cross")
    other = tokens
    value = size if form != "apart" else d.pick(size, size, 4)
    if form == "packed":
        d.put([batch, tokens, count, 3, size], [BATCH, TOKENS])
        d.skip(2)
    elif form == "pairs":
        other = d.pick(tokens, 5)
        d.put([batch, tokens, wide], [BATCH, TOKENS])
        d.put([batch, other, count, 2, size], [BATCH])
        d.skip()
    elif form == "cross":
        other = d.pick(tokens, 5)
        d.put([batch, tokens, wide], [BATCH, TOKENS])
        d.put([batch, count, other, size], [BATCH])
        d.put([batch, count, other, size], [BATCH])
    else:
        other = d.pick(tokens, tokens, 5)
        d.put([batch, tokens, wide], [BATCH, TOKENS if other == tokens else ""])
        d.put([batch, other, wide], [BATCH, TOKENS if other == tokens else ""])
        d.put([batch, other, count * value], [BATCH, TOKENS if other == tokens else ""])
    if form != "packed" and d.pick(0, 1):
        d.weigh([2 * wide + count * value])
    else:
        d.skip()
    if form == "apart" and other == tokens and value == size and d.pick(0, 1):
        past = d.pick(1, 3)
    _mask_and_bias(d, batch, count, tokens, past + other, ("lengths", "keys", "pairs"), bool(past), 4, 5)
    if past:
        while len(d.operands) < 6:
            d.skip()
        for _ in range(2):
            d.put([batch, count, past, size], [BATCH, "", PAST])
    d.attrs["num_heads"] = count
    if other == tokens:
        d.maybe("unidirectional", 0, 1)
    d.maybe("scale", 0.3)
    d.outputs = d.pick(1, 3) if not past else 3


def _attention(d: NodeDraw) -> None:
    batch, count, size, tokens, past = d.pick(1, 2, 3), d.pick(1, 2, 3), 8, d.pick(1, 4), d.pick(0, 0, 2)
    value = size if past else d.pick(size, size, 4)
    sizes = [count * size, count * size, count * value]
    d.put([batch, tokens, 12], [BATCH, TOKENS])
    d.weigh([12, sum(sizes)], scale=0.5)
    d.weigh([sum(sizes)]) if d.pick(0, 1) else d.skip()
    _mask_and_bias(d, batch, count, tokens, past + tokens, ("lengths", "spans", "keys", "pairs"), bool(past), 3, 5)
    if past:
        while len(d.operands) < 5:
            d.skip()
        d.operands[4] = d.floats((2, batch, count, past, size))
        d.names[4] = ["", BATCH, "", PAST]
    if value != size or d.pick(0, 1):
        d.attrs["qkv_hidden_sizes"] = sizes
    d.attrs["num_heads"] = count
    d.maybe("unidirectional", 0, 1)
    d.maybe("scale", 0.3)
    d.outputs = 2 if past else d.pick(1, 2) if value == size else 1


def _quantized_attention(d: NodeDraw) -> None:
    batch, count, size, tokens, past = d.pick(1, 2, 3), d.pick(1, 2, 3), 8, d.pick(1, 4), d.pick(0, 0, 2)
    kind, weight, wide = np.uint8, d.pick(np.int8, np.uint8), 3 * count * size
    _code(d, kind, batch, tokens, 12)
    _code(d, weight, 12, wide, known=True)
    d.weigh([wide])
    by_column = d.pick(0, 1)
    for columns in ([], [wide] * by_column):
        _factor(d, *columns)
        d.operands[-1] *= 0.2  # type: ignore[operator]
    _mask_and_bias(d, batch, count, tokens, past + tokens, ("lengths", "keys", "pairs"), bool(past), 5, 99)
    _code(d, kind, known=True)
    _code(d, weight, *[wide] * by_column, known=True)
    if past:
        d.put((2, batch, count, past, size), ["", BATCH, "", PAST])
    d.attrs["num_heads"] = count
    d.free = False
    d.maybe("unidirectional", 0, 1)
    d.outputs = 2


def _code(d: NodeDraw, dtype: Any, *shape: int, known: bool = False) -> None:
    """An operand of bytes. Signed weights have 7 bits: ONNX Runtime adds two products with unsigned bytes in 16
    bits, saturated, on CPUs that have AVX2 and no instructions for it."""
    info, few = np.iinfo(dtype), 2 if known and dtype is np.int8 and len(shape) > 1 else 1
    if known:
        d.known.add(len(d.operands))
    d.give(d.ints(shape, info.min // few, (info.max + 1) // few, dtype))


def _factor(d: NodeDraw, *shape: int) -> None:
    d.known.add(len(d.operands))
    d.give((d.np.random(shape) * 0.1 + 0.02).astype(np.float32))


def _to_float(d: NodeDraw) -> None:
    rows, inner, columns = d.pick(1, 3), d.pick(4, 9), d.pick(1, 5)
    a, b = np.uint8, d.pick(np.int8, np.uint8)
    by_column = d.pick(0, 1)
    _code(d, a, *d.pick([], [2]), rows, inner)
    _code(d, b, inner, columns, known=True)
    _factor(d)
    _factor(d, *[columns] * by_column)
    _code(d, a) if d.pick(0, 1) else d.skip()
    _code(d, b, *[columns] * by_column, known=True) if d.pick(0, 1) else d.skip()
    if d.pick(0, 1):
        d.weigh((columns,))


def _dynamic(d: NodeDraw) -> None:
    rows, inner, columns, by_column = d.pick(1, 3), d.pick(4, 9), d.pick(1, 5), d.pick(0, 1)
    kind = d.pick(np.int8, np.uint8)
    d.put([*d.pick([], [2]), rows, inner])
    _code(d, kind, inner, columns, known=True)
    _factor(d, *[columns] * by_column)
    _code(d, kind, *[columns] * by_column, known=True) if d.pick(0, 1) else d.skip()
    if d.pick(0, 1):
        d.weigh((columns,))


def _qgemm(d: NodeDraw) -> None:
    rows, inner, columns, by_column = d.pick(1, 3), d.pick(4, 9), d.pick(1, 5), d.pick(0, 1)
    a = d.pick(np.uint8, np.int8)
    b = a
    _code(d, a, *((inner, rows) if d.maybe("transA", 0, 1) else (rows, inner)))
    _factor(d)
    _code(d, a, known=True)
    turned = d.maybe("transB", 0, 1)
    _code(d, b, *((columns, inner) if turned else (inner, columns)), known=True)
    _factor(d, *[columns] * by_column)
    _code(d, b, *[columns] * by_column, known=True)
    d.know(d.ints((columns,), -500, 500), np.int32) if d.pick(0, 1) else d.skip()
    if d.pick(0, 1):
        _factor(d)
        d.operands[-1] *= 40  # type: ignore[operator]
        _code(d, a, known=True)
    d.maybe("alpha", 0.5)


def _qlinear(d: NodeDraw, operands: int) -> None:
    kind, shape = d.pick(np.uint8, np.int8), d.shape(1, 3)
    for _ in range(operands):
        _code(d, kind, *shape)
        _factor(d)
        _code(d, kind, known=True)  # ONNX Runtime needs it
    _factor(d)
    _code(d, kind, known=True)


def _qlinear_leaky(d: NodeDraw) -> None:
    _qlinear(d, 1)
    d.maybe("alpha", 0.2)


def _qlinear_pool(d: NodeDraw) -> None:
    kind = d.pick(np.uint8, np.int8)
    _code(d, kind, d.pick(1, 2), 3, 4, 4)
    d.maybe("channels_last", 0, 1)
    for _ in range(2):
        _factor(d)
        _code(d, kind, known=True)


def _qlinear_softmax(d: NodeDraw) -> None:
    kind, shape = d.pick(np.uint8, np.int8), d.shape(2, 3)
    _code(d, kind, *shape)
    _factor(d)
    _code(d, kind, known=True)
    d.know(np.float32(1 / 256), np.float32)
    d.know(0 if kind is np.uint8 else -128, kind)
    d.attrs |= {"axis": d.axis(len(shape)), "opset": d.pick(11, 13)}


def _qlinear_where(d: NodeDraw) -> None:
    kind, shape = d.pick(np.uint8, np.int8), d.shape(1, 3)
    d.give(d.ints(shape, 0, 2).astype(bool))
    for _ in range(2):
        _code(d, kind, *shape)
        _factor(d)
        d.known |= {len(d.operands) - 2, len(d.operands)} if d.pick(0, 1) else {len(d.operands)}
        _code(d, kind, known=True)
    _factor(d)
    _code(d, kind, known=True)


def _windows(d: NodeDraw) -> bool:
    """Attributes of a window of 3 x 2; whether channels are last."""
    d.attrs["kernel_shape"] = [3, 2]
    d.maybe("strides", [1, 1], [2, 1], [2, 2])
    d.maybe("pads", [1, 0, 1, 1], [0, 1, 0, 1])
    return bool(d.pick(0, 1))


def _image(d: NodeDraw, kind: Any, channels: int, last: bool) -> None:
    batch, height, width = d.pick(1, 2), d.pick(5, 6), d.pick(4, 7)
    _code(d, kind, *([batch, height, width, channels] if last else [batch, channels, height, width]))


def _qlinear_average(d: NodeDraw) -> None:
    kind, last = d.pick(np.uint8, np.int8), _windows(d)
    d.attrs["channels_last"] = int(last)
    _image(d, kind, 3, last)
    for _ in range(2):
        _factor(d)
        _code(d, kind, known=True)
    d.maybe("count_include_pad", 1)
    d.maybe("ceil_mode", 1)


def _nhwc_max(d: NodeDraw) -> None:
    _windows(d)
    _image(d, d.pick(np.uint8, np.int8), 3, True)
    d.maybe("dilations", [2, 1])
    d.maybe("ceil_mode", 1)


def _qlinear_conv(d: NodeDraw) -> None:
    kind, weight, last = d.pick((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)) + (_windows(d),)
    groups = d.pick(1, 1, 2)
    d.attrs |= {"group": groups, "channels_last": int(last)}
    _image(d, kind, 2 * groups, last)
    _factor(d)
    _code(d, kind, known=True)
    _code(d, weight, 4, 2, 3, 2, known=True)
    _factor(d, *[4] * d.pick(0, 1))
    d.know(d.pick(0, 3), weight)
    _factor(d)
    d.operands[-1] *= 40  # type: ignore[operator]
    _code(d, kind, known=True)
    if d.pick(0, 1):
        d.know(d.ints((4,), -500, 500), np.int32)


def _qlinear_concat(d: NodeDraw) -> None:
    kind = d.pick(np.uint8, np.int8)
    _factor(d)
    _code(d, kind, known=True)
    for _ in range(d.pick(1, 2, 3)):
        _code(d, kind, 2, d.pick(1, 3), 2)
        _factor(d)
        _code(d, kind, known=True)
    d.attrs["axis"] = d.pick(1, -2)


NODES: dict[str, Callable[[NodeDraw], None]] = {
    "Gelu": _activation,
    "FastGelu": lambda d: _biased(d, always=False),
    "BiasGelu": _biased,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": lambda d: _skip_norm(d, rms=True),
    "SimplifiedLayerNormalization": _simplified,
    "EmbedLayerNormalization": _embed,
    "RotaryEmbedding": _rotary,
    "MatMulNBits": _nbits,
    "GatherBlockQuantized": _gather_blocks,
    "DequantizeLinear": _dequantize_blocks,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "LayerNormalization": _older_norm,
    "MatMulIntegerToFloat": _to_float,
    "DynamicQuantizeMatMul": _dynamic,
    "QGemm": _qgemm,
    "QLinearAdd": lambda d: _qlinear(d, 2),
    "QLinearMul": lambda d: _qlinear(d, 2),
    "QLinearSigmoid": lambda d: _qlinear(d, 1),
    "QLinearLeakyRelu": _qlinear_leaky,
    "QLinearGlobalAveragePool": _qlinear_pool,
    "QLinearConcat": _qlinear_concat,
    "QLinearSoftmax": _qlinear_softmax,
    "QLinearAveragePool": _qlinear_average,
    "QLinearWhere": _qlinear_where,
    "NhwcMaxPool": _nhwc_max,
    "QLinearConv": _qlinear_conv,
}


if __name__ == "__main__":
    compared(__doc__, list(NODES), tried)
