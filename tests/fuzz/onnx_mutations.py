"""ONNX nodes of `onnx_draws` with a changed attribute, shape, dtype or operand: results must agree with onnx's
reference evaluator or ONNX Runtime, everything else is an error with a name.

`python -m tests.fuzz.onnx_mutations [--seconds S] [--seed N]`

Printed: RAW (an error without a name), DIFFERS (a result that neither of both gives) and ACCEPTED (a result where both
refuse the model). Not counted: indices outside an axis that are only known in a call.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.models.onnx.load import load_onnx

from .onnx_draws import NODES, Draw
from .onnx_nodes import FIRST, agree, model, runtime

_NUMBERS = (-1, 0, 1, 2, 3, 5, 7, -2, -5, 64, 1 << 31, -(1 << 40))
_FLOATS = (0.0, -1.0, 2.5, 1e-30)
_TEXTS = ("", "x", "none", "SAME_UPPER", "linear", "NOTSET")
_DTYPES = (np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_)


def _change_attribute(d: Draw, r: random.Random) -> None:
    kinds = onnx.defs.OpSchema.AttrType
    attributes = onnx.defs.get_schema(d.op, d.opset, "").attributes  # type: ignore[attr-defined]
    single = {kinds.INT: _NUMBERS, kinds.FLOAT: _FLOATS, kinds.STRING: _TEXTS}
    names = [n for n, a in attributes.items() if a.type in single or a.type == kinds.INTS]
    name = r.choice(names)
    if attributes[name].type in single:
        d.attrs[name] = r.choice(single[attributes[name].type])
        return
    now = list(d.attrs.get(name) or [r.randint(0, 2) for _ in range(r.randint(1, 4))])
    place, how = r.randrange(len(now)), r.choice(("number", "shorter", "longer", "repeated"))
    if how == "longer":
        now.append(r.randint(0, 2))
    elif how == "shorter" and len(now) > 1:
        now.pop()
    else:
        now[place] = now[0] if how == "repeated" else r.choice(_NUMBERS[:9])
    d.attrs[name] = now


def _change_operand(d: Draw, r: random.Random) -> None:
    spot = r.choice([i for i, x in enumerate(d.operands) if x is not None])
    x = d.operands[spot]
    assert x is not None
    shape, how = list(x.shape), r.choice(("dtype", "value", "one", "longer", "shorter", "axis", "no axis", "none"))
    if how == "dtype":
        with np.errstate(all="ignore"):
            d.operands[spot] = x.astype(r.choice(_DTYPES))
        return
    if how == "none":
        d.operands[spot] = None
        return
    if how == "value" and spot in d.known and x.size:
        flat = x.reshape(-1).copy()
        flat[r.randrange(x.size)] = r.choice((-1, 0, 1, 2, 7, -3))
        d.operands[spot] = flat.reshape(x.shape)
        return
    if how == "axis" or not shape:
        shape.insert(r.randint(0, len(shape)), r.choice((1, 2)))
    else:
        axis = r.randrange(len(shape))
        shape[axis] = {"one": 1, "longer": shape[axis] + 1}.get(how, max(shape[axis] - 1, 0))
        if how == "no axis":
            del shape[axis]
    if x.size:
        d.operands[spot] = np.resize(x, shape).astype(x.dtype)


def tried(seed: int, op: str, folder: Path, others: bool = True) -> tuple[str, str]:
    """What became of one changed node (see the module's text; "fine" and "skipped" are not printed), and the node.
    `others`: whether ONNX Runtime, which some nodes crash, is asked."""
    r, d = random.Random(crc32(f"{op} changed {seed}".encode())), Draw(crc32(f"{op} {seed}".encode()))
    d.op = op  # type: ignore[attr-defined]
    reference: list[Any] = []
    try:
        d.opset = max(d.opset, FIRST.get(op, 13))
        NODES[op](d)
        for _ in range(r.choice((1, 1, 2))):
            r.choice((_change_attribute, _change_operand))(d, r)
        one, given = model(d, op)
    except (Exception, SystemError):
        return "skipped", ""
    message = f"{op} opset {d.opset} {d.attrs} {[None if x is None else (x.dtype.name, x.shape, x.tolist() if i in d.known else '') for i, x in enumerate(d.operands)]}"
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            reference = [np.asarray(v) for v in ReferenceEvaluator(one).run(None, given)]
            kinds = [helper.np_dtype_to_tensor_dtype(v.dtype) for v in reference]
        except Exception as error:
            message += f"\n  reference: {type(error).__name__} {str(error)[:80]}"
            kinds = []
            if isinstance(error, IndexError):
                return "skipped", message
        for k, info in enumerate(one.graph.output):
            declared = kinds[k] if k < len(kinds) else onnx.TensorProto.FLOAT
            info.CopyFrom(helper.make_tensor_value_info(info.name, declared, None))
        file = folder / "m.onnx"
        file.write_bytes(one.SerializeToString())
        try:
            found = [np.asarray(v) for v in evaluate(load_onnx(file), given)]
        except TensorGraphsError:
            return "fine", message
        except Exception as error:
            return "RAW", f"{message}\n  {type(error).__name__}: {error}"
    message += f"\n  found {[f'{v.dtype}{v.shape} {v.ravel()[:6]}' for v in found]}"
    if reference and all(map(agree, found, reference)):
        return "fine", message
    run = runtime(one, given) if others and all(one.graph.node[0].input) else []
    if run and all(map(agree, found, run)):
        return "fine", message
    message += f"\n  not   {[f'{v.dtype}{v.shape} {v.ravel()[:6]}' for v in reference or run]}"
    return ("DIFFERS" if reference or run else "ACCEPTED"), message


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", default="", help="comma separated; default: all")
    parser.add_argument("--each", type=int, default=2, help="findings shown per operator")
    given = parser.parse_args()
    ops = given.ops.split(",") if given.ops else list(NODES)
    end, seed, counts, shown = time.monotonic() + given.seconds, given.seed, Counter[str](), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for op in ops:
                kind, message = tried(seed, op, Path(folder))
                counts[kind] += 1
                shown[kind, op] += 1
                if kind not in ("fine", "skipped") and shown[kind, op] <= given.each:
                    print(f"=== {kind} seed {seed} {message}", flush=True)
            seed += 1
    print(f"{dict(counts)}, seeds {given.seed} to {seed - 1}")


if __name__ == "__main__":
    main()
