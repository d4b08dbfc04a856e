"""ONNX operators with random attributes and shapes: our loader against onnx's reference evaluator, and ONNX Runtime
where they differ.

`python -m tests.fuzz.onnx_nodes [--seconds S] [--seed N]`
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError, UnsupportedError
from tensor_graphs.models.onnx.load import load_onnx

from .onnx_draws import NODES, Array, Draw

#: Operator -> the opset that introduced it.
FIRST = {"BitwiseAnd": 18, "BitwiseOr": 18, "BitwiseXor": 18, "Trilu": 14, "Mish": 18, "HardSwish": 14}


def model(d: Draw, op: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The node as a model, and its inputs."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(d.operands)]
    while names and not names[-1]:
        names.pop()
    outs = [f"o{k}" for k in range(d.outputs)]
    made = helper.make_node(op, names, outs, **d.attrs)
    inputs, given = [], {}
    initial = []
    for k, (name, x) in enumerate(zip(names, d.operands)):
        if not name or x is None:
            continue
        if k in d.known:
            initial.append(numpy_helper.from_array(x, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
            given[name] = x
    graph = helper.make_graph([made], "g", inputs, [onnx.ValueInfoProto(name=o) for o in outs], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", d.opset)], ir_version=10), given


def tried(seed: int, op: str, folder: Path) -> str:
    """'' where the loader agrees with the reference; else what is wrong, or why nothing was compared ("-")."""
    d = Draw(crc32(f"{op} {seed}".encode()))
    d.op = op  # type: ignore[attr-defined]
    try:
        d.opset = max(d.opset, FIRST.get(op, 13))
        NODES[op](d)
        one, given = model(d, op)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            want = ReferenceEvaluator(one).run(None, given)
        for info, w in zip(one.graph.output, map(np.asarray, want)):
            info.CopyFrom(helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(w.dtype), w.shape))
    except Exception as error:
        return f"- reference: {type(error).__name__}"
    file = folder / "m.onnx"
    file.write_bytes(one.SerializeToString())
    message = f"{op} opset {d.opset} {d.attrs} {[None if x is None else (x.dtype.name, x.shape, x.tolist() if i in d.known else '') for i, x in enumerate(d.operands)]}"
    try:
        with np.errstate(all="ignore"):
            found = evaluate(load_onnx(file), given)
    except UnsupportedError:
        return "- unsupported"
    except TensorGraphsError as error:
        return f"{message}\n  refused: {error}; ORT: {[np.shape(x) for x in runtime(one, given)]}"
    except Exception as error:
        return f"{message}\n  raised {type(error).__name__}: {error}"
    for k, (f, w) in enumerate(zip(found, map(np.asarray, want))):
        if not agree(f, w):
            others = runtime(one, given)[k : k + 1]
            if others and agree(f, others[0]):
                return f"- {op}: as ONNX Runtime, not as the reference"
            ours, right, *more = (f"{x.dtype}{x.shape} {x.ravel()[:8]}" for x in (f, w, *others))
            return f"{message}\n  output {k}: {ours}\n  for   {right}\n  ORT   {more}"
    return ""


def agree(a: Array, b: Array) -> bool:
    """Equal up to rounding."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return np.allclose(
        a.astype("f8"), b.astype("f8"), rtol=2e-3 if a.dtype == np.float16 else 1e-4, atol=1e-4, equal_nan=True
    )


def runtime(one: onnx.ModelProto, given: dict[str, Array]) -> list[Array]:
    """ONNX Runtime's results; an empty list if it refuses the model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return [np.asarray(x) for x in ort.InferenceSession(one.SerializeToString(), options).run(None, given)]
    except Exception:
        return []


def compared(description: str | None, ops: Sequence[str], tried: Callable[[int, str, Path], str]) -> None:
    """Run the command line of a generator of ONNX nodes: try the operators with one seed after another until the time
    is over, and print what differs and counts.

    `tried(seed, operator, folder)`: "" where both sides agree; else what is wrong, or why nothing was compared ("-").
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", default="", help="comma separated; default: all")
    parser.add_argument("--each", type=int, default=4, help="failures shown per operator")
    given = parser.parse_args()
    ops = given.ops.split(",") if given.ops else ops
    end, seed = time.monotonic() + given.seconds, given.seed
    good, failed, passed = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for op in ops:
                message = tried(seed, op, Path(folder))
                if message.startswith("-"):
                    passed[f"{op} {message}"] += 1
                elif message:
                    failed[op] += 1
                    if failed[op] <= given.each:
                        print(f"=== seed {seed} {message}", flush=True)
                else:
                    good[op] += 1
            seed += 1
    print(f"{sum(good.values())} agree, {sum(failed.values())} do not: {dict(failed)}")
    print("agree:", dict(good))
    print("not compared:", dict(passed.most_common(60)))
    print("never:", [o for o in ops if not good[o]])


if __name__ == "__main__":
    compared(__doc__, list(NODES), tried)
