"""A small decoder as onnxruntime-genai exports it: weights of 4 bits, GroupQueryAttention with caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

HIDDEN, HEADS, SHARED, SIZE, INNER, VOCABULARY, LONGEST, BLOCK = 64, 4, 2, 16, 96, 40, 32, 32
MICROSOFT = "com.microsoft"
FLOAT: Any = np.float32  # dtype of activations and scales


class Writer:
    """Nodes and initializers of the decoder."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.initial: list[Any] = []

    def store(self, name: str, array: Any) -> str:
        self.initial.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, name: str, *shape: int, scale: float = 1.0) -> str:
        return self.store(name, (self.rng.standard_normal(shape) * scale).astype(FLOAT))

    def node(self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, f"/{outputs[0]}", domain=domain, **attrs))
        return outputs[0]

    def linear(self, name: str, x: str, inputs: int, outputs: int, zeros: bool = False) -> str:
        """A product with a weight of 4 bits. Its zero points are stored if `zeros`, else all are 8."""
        blocks = inputs // BLOCK
        codes = self.rng.integers(0, 256, (outputs, blocks, BLOCK // 2)).astype(np.uint8)
        operands = [x, self.store(f"{name}.weight_Q4", codes)]
        scale = (self.rng.random((outputs, blocks)) * 0.04 + 0.02).astype(FLOAT)
        operands.append(self.store(f"{name}.weight_scales", scale))
        if zeros:
            stored = self.rng.integers(0, 256, (outputs, -(-blocks // 2))).astype(np.uint8)
            operands.append(self.store(f"{name}.weight_zp", stored))
        return self.node(
            "MatMulNBits", operands, [f"{name}/out"], MICROSOFT, K=inputs, N=outputs, bits=4, block_size=BLOCK
        )


def decoder(layers: int = 2, seed: int = 0) -> ModelProto:
    """The decoder, with random weights.

    Inputs: input_ids [batch_size, sequence_length], attention_mask [batch_size, total_sequence_length],
    past_key_values.N.key and .value [batch_size, SHARED, past_sequence_length, SIZE]. Outputs: logits, present.N.key
    and .value.
    """
    w = Writer(seed)
    angle = np.arange(LONGEST)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
    cos, sin = (w.store(n, f(angle).astype(FLOAT)) for n, f in (("cos_cache", np.cos), ("sin_cache", np.sin)))
    one, axes = w.store("one", np.array([1], np.int64)), w.store("axes", np.array([1], np.int64))
    w.node("ReduceSum", ["attention_mask", axes], ["sums"], keepdims=0)
    w.node("Sub", ["sums", one], ["last"])
    w.node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
    w.node("Shape", ["attention_mask"], ["mask_shape"])
    w.node("Gather", ["mask_shape", w.store("index", np.array(1, np.int64))], ["total64"], axis=0)
    w.node("Cast", ["total64"], ["total"], to=TensorProto.INT32)
    table = w.floats("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    x = skip = w.node("Gather", [table, "input_ids"], ["embedded"])
    info = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(FLOAT))
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
    ]
    outputs = [info("logits", kind, ["batch_size", "sequence_length", VOCABULARY])]
    x = w.node("SimplifiedLayerNormalization", [x, w.floats("norm.weight", HIDDEN)], ["normed"], axis=-1, epsilon=1e-5)
    for n in range(layers):
        base = f"layers.{n}"
        q, k, v = (
            w.linear(f"{base}.{name}_proj", x, HIDDEN, heads * SIZE, zeros=name == "v")
            for name, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED))
        )
        caches = [f"past_key_values.{n}.{part}" for part in ("key", "value")]
        presents = [f"present.{n}.{part}" for part in ("key", "value")]
        for names, kept, length in ((caches, inputs, "past"), (presents, outputs, "total")):
            kept += [info(c, kind, ["batch_size", SHARED, f"{length}_sequence_length", SIZE]) for c in names]
        operands = [q, k, v, *caches, "seqlens_k", "total", cos, sin]
        a = w.node("GroupQueryAttention", operands, [f"{base}.attention", *presents], MICROSOFT, num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1, scale=SIZE**-0.5)  # fmt: skip
        a = w.linear(f"{base}.o_proj", a, HEADS * SIZE, HIDDEN)
        x, skip = _added(w, f"{base}.post", skip, a)
        gate, up = (w.linear(f"{base}.{name}_proj", x, HIDDEN, INNER) for name in ("gate", "up"))
        w.node("Sigmoid", [gate], [f"{base}.sigmoid"])
        w.node("Mul", [gate, f"{base}.sigmoid"], [f"{base}.silu"])
        inner = w.node("Mul", [f"{base}.silu", up], [f"{base}.inner"])
        x, skip = _added(w, f"{base}.input", skip, w.linear(f"{base}.down_proj", inner, INNER, HIDDEN), n == layers - 1)
    w.linear("logits", x, HIDDEN, VOCABULARY)
    w.nodes[-1].output[0] = "logits"
    graph = helper.make_graph(w.nodes, "main_graph", inputs, outputs, w.initial)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _added(w: Writer, name: str, skip: str, x: str, last: bool = False) -> tuple[str, str]:
    """(normalized sum, sum) of a residual connection."""
    outputs = [f"{name}.normed"] if last else [f"{name}.normed", "", "", f"{name}.sum"]
    weight = w.floats(f"{name}.weight", HIDDEN)
    w.node("SkipSimplifiedLayerNormalization", [skip, x, weight], outputs, MICROSOFT, epsilon=1e-5)
    return outputs[0], outputs[-1]


def no_past(batch: int, layers: int = 2, length: int = 0) -> dict[str, Any]:
    """Empty caches."""
    shape = (batch, SHARED, length, SIZE)
    return {f"past_key_values.{n}.{p}": np.zeros(shape, FLOAT) for n in range(layers) for p in ("key", "value")}


def save(file: Path, layers: int = 2) -> Path:
    """The decoder as a file."""
    file.write_bytes(decoder(layers).SerializeToString())
    return file
