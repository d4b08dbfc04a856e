"""Whole networks that ONNX Runtime's quantizers write (QDQ and QOperator, static and dynamic, per channel, asymmetric,
8, 16 and 4 bits): our loader against ONNX Runtime, and programs against the loader.

`python -m tests.fuzz.onnx_quantizers [--seconds S] [--seed N] [--programs SHARE] [--once]`

Weights have 7 bits (`reduce_range`), since ONNX Runtime's products of uint8 and int8 saturate on processors without
VNNI. A rounding that differs by one code in the middle of a network reaches many results by a little. So results are
`close` up to 3 % of the largest one, and those of a program that are not the loader's are counted.
"""

from __future__ import annotations

import logging
import random
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.models.onnx.load import load_onnx
from tensor_graphs.pipeline.execution.run_program import run_flat

from .arguments import is_program, print_counts, seed_arguments
from .onnx_graph_values import asked, session

Array = np.ndarray[Any, Any]
CLOSE = 0.03


class Network:
    """A small convolutional network, perceptron or attention of random layers, with random weights."""

    def __init__(self, seed: int) -> None:
        self.rng, self.np = random.Random(seed), np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.initial: dict[str, Array] = {}
        self.opset = self.rng.choice((13, 17, 21))
        self.shape, end = self.rng.choice((self.images, self.rows, self.tokens))()
        info = [helper.make_tensor_value_info("x", 1, self.shape), helper.make_tensor_value_info(end, 1, None)]
        weights = [numpy_helper.from_array(v, n) for n, v in self.initial.items()]
        graph = helper.make_graph(self.nodes, "g", info[:1], info[1:], weights)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def draw(self, *shape: int) -> Array:
        return np.asarray(self.np.standard_normal(shape) * 0.5, np.float32)

    def given(self) -> dict[str, Array]:
        """New inputs."""
        return {"x": self.draw(*self.shape)}

    def weight(self, x: Any) -> str:
        self.initial[f"w{len(self.initial)}"] = np.asarray(x)
        return f"w{len(self.initial) - 1}"

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], name=f"n{len(self.nodes)}", **attrs))
        return out

    def activation(self, x: str) -> str:
        op = self.rng.choice(("Relu", "Clip", "Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh", ""))
        more = (self.weight(np.float32(0)), self.weight(np.float32(6))) if op == "Clip" else ()
        return self.add(op, x, *more) if op else x

    def images(self) -> tuple[tuple[int, ...], str]:
        channels = self.rng.choice((1, 3, 4, 8))
        shape, x = (2, channels, 8, 7), "x"
        for _ in range(self.rng.randint(1, 3)):
            wide, size = self.rng.choice((2, 4, 6, 16)), self.rng.choice((1, 3))
            group = channels if wide % channels == 0 and self.rng.random() < 0.3 else 1
            bias = [self.weight(self.draw(wide))] if self.rng.random() < 0.7 else []
            x = self.add("Conv", x, self.weight(self.draw(wide, channels // group, size, size)), *bias, group=group,
                         kernel_shape=[size] * 2, pads=[size // 2] * 4, strides=[self.rng.choice((1, 1, 2))] * 2)  # fmt: skip
            channels = wide
            x = self.activation(x)
            x, channels = self.between(x, channels)
        x = self.add("Flatten", self.add("GlobalAveragePool", x))
        return shape, self.add("Gemm", x, self.weight(self.draw(5, channels)), self.weight(self.draw(5)), transB=1)

    def between(self, x: str, channels: int) -> tuple[str, int]:
        """A layer that keeps the quantization, or nearly; (its value, channels)."""
        op = self.rng.choice(("", "MaxPool", "AveragePool", "Concat", "Resize", "Pad", "Transpose", "Add", "Mul"))
        if op in ("MaxPool", "AveragePool"):
            return self.add(op, x, kernel_shape=[2, 2], pads=[1, 1, 0, 0]), channels
        if op == "Concat":
            return self.add(op, x, x, axis=1), 2 * channels
        if op == "Resize":
            scales = self.weight(np.asarray([1, 1, 2, 2], np.float32))
            return self.add(op, x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"), channels  # fmt: skip
        if op == "Pad":
            return self.add(op, x, self.weight([0, 0, 1, 0, 0, 0, 0, 1]), mode="constant"), channels
        if op == "Transpose":
            return self.add(op, self.add(op, x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2]), channels
        other = self.rng.choice((x, self.weight(self.draw(1, channels, 1, 1)))) if op else ""
        return (self.add(op, x, other) if op else x), channels

    def rows(self) -> tuple[tuple[int, ...], str]:
        wide = self.rng.choice((4, 6, 17))
        shape, x = (3, wide), "x"
        for _ in range(self.rng.randint(1, 4)):
            out = self.rng.choice((3, 4, 8))
            if self.rng.random() < 0.5:
                x = self.add("MatMul", x, self.weight(self.draw(wide, out)))
                x = self.add("Add", x, self.weight(self.draw(out)))
            else:
                x = self.add("Gemm", x, self.weight(self.draw(out, wide)), self.weight(self.draw(out)), transB=1)
            x, wide = self.activation(x), out
        return shape, self.add("Softmax", x, axis=-1) if self.rng.random() < 0.3 else x

    def tokens(self) -> tuple[tuple[int, ...], str]:
        shape, heads = (2, 5, 4), self.weight([2, 5, 2, 2])
        parts = [self.add("MatMul", "x", self.weight(self.draw(4, 4))) for _ in range(3)]
        q, k, v = (self.add("Transpose", self.add("Reshape", p, heads), perm=perm)
                   for p, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])))  # fmt: skip
        scores = self.add("Softmax", self.add("Div", self.add("MatMul", q, k), self.weight(np.float32(1.4))), axis=-1)
        joined = self.add("Transpose", self.add("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = self.add("MatMul", self.add("Reshape", joined, self.weight(shape)), self.weight(self.draw(4, 4)))
        return shape, self.add("Add", "x", y)


def quantized(net: Network, folder: Path) -> Path:
    """The network as a quantizer of ONNX Runtime writes it, with random options."""
    from onnxruntime import quantization as q

    rng, source, file = net.rng, folder / "float.onnx", folder / "m.onnx"
    onnx.save(net.model, str(source))
    if rng.random() < 0.5:
        q.shape_inference.quant_pre_process(str(source), str(source), skip_symbolic_shape=True)
    kinds = q.QuantType
    if rng.random() < 0.25:
        q.quantize_dynamic(str(source), str(file), per_channel=rng.random() < 0.5, reduce_range=True,
                           weight_type=rng.choice((kinds.QUInt8, kinds.QInt8)), extra_options={"MatMulConstBOnly": True})  # fmt: skip
        return file
    pairs = rng.random() < 0.65
    inner = rng.choice((kinds.QUInt8, kinds.QUInt8, kinds.QInt8, *((kinds.QInt16, kinds.QUInt16) if pairs else ())))
    weight = rng.choice((kinds.QInt8, kinds.QInt8, kinds.QUInt8, *((kinds.QInt4, kinds.QUInt4) if pairs else ())))
    flags = (
        "ActivationSymmetric",
        "WeightSymmetric",
        "DedicatedQDQPair",
        "QDQKeepRemovableActivations",
        "MatMulConstBOnly",
    )
    feeds = iter([net.given() for _ in range(4)])

    class Reader(q.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> Any:
            return next(feeds, None)

    form = q.QuantFormat.QDQ if pairs else q.QuantFormat.QOperator
    q.quantize_static(str(source), str(file), Reader(), quant_format=form, activation_type=inner, weight_type=weight, per_channel=rng.random() < 0.5,
                      reduce_range=True, extra_options={f: rng.random() < 0.4 for f in flags})  # fmt: skip
    return file


def compared(found: Array, want: Array) -> str:
    """How a result differs: "equal", "close" or what is wrong."""
    if found.shape != want.shape or found.dtype != want.dtype:
        return f"STRUCTURE: {found.dtype}{found.shape}, not {want.dtype}{want.shape}"
    gap = np.abs(found.astype(np.float64) - want.astype(np.float64)).max(initial=0)
    peak = np.abs(want.astype(np.float64)).max(initial=1e-6)
    if gap <= 1e-5 * peak:
        return "equal"
    return (
        "close"
        if gap <= CLOSE * peak
        else f"WRONG: off by {gap:.3g} of {peak:.3g}: {found.ravel()[:6]} for {want.ravel()[:6]}"
    )


def tried(seed: int, program: bool, folder: Path) -> tuple[str, str]:
    """(kind, message) of a seed."""
    net = Network(seed)
    try:
        file = quantized(net, folder)
    except Exception as error:
        return f"no quantizer: {type(error).__name__}", ""
    model = onnx.load(str(file))
    there, feeds = session(model), [net.given() for _ in range(4)]
    told = f"opset {net.opset} {Counter(f'{n.domain}{n.op_type}' for n in model.graph.node)}"
    backend = net.rng.choice(("numpy", "c", "c", "torch"))
    try:
        with np.errstate(all="ignore"):
            graph = load_onnx(file)
            call: Callable[[Mapping[str, Array]], Any] = lambda given: evaluate(graph, given)
            wants = [asked(there, given) for given in feeds]
            if program:
                made = tg.optimize(file, backend=backend, budget=1.5, measure=False, verify=net.rng.random() < 0.5)
                wants = [evaluate(graph, given) for given in feeds]
                call = lambda given: run_flat(made, given)
            kinds = [compared(np.asarray(call(given)[0]), np.asarray(want[0])) if want else "no ORT" for given, want in zip(feeds, wants)]  # fmt: skip
    except TensorGraphsError as error:
        return f"refused {str(getattr(error, 'missing', '') or error)[:80]}", f"{told}\n{error}"
    except Exception as error:
        return "RAW", f"{told}\n{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
    worst = max(kinds, key=lambda k: (k.partition(":")[0].isupper(), k == "close"))
    return worst.partition(":")[0], f"{backend if program else 'loaded'} {told}\n{worst}"


def main() -> None:
    """Run the command line described above."""
    given = seed_arguments(__doc__, "networks", "loaded").parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    end, seed, counts = time.monotonic() + given.seconds, given.seed, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            program = is_program(seed, given.programs)
            kind, message = tried(seed, program, Path(folder))
            counts[f"{'program ' if program else ''}{kind}"] += 1
            if kind.isupper() or given.once or (given.show and given.show in kind):
                print(f"=== {kind} seed {seed} {message}", flush=True)
            seed += 1
            if given.once:
                break
    print(f"seeds {given.seed} to {seed - 1}")
    print_counts(counts)


if __name__ == "__main__":
    main()
