"""Values of random ONNX graphs (`onnx_graphs`): our loader and programs against onnx's reference evaluator and ONNX
Runtime, also at other sizes where the file has free ones.

`python -m tests.fuzz.onnx_graph_values [--seconds S] [--seed N] [--programs SHARE] [--once]`

Printed: WRONG (a result that neither of both gives), DECIDES (differs where both give one exact result, and rounding on
the way decides it), RAW (an error without a name), REFUSED (a model that both compute), SLOW, CRASH, and counts of
named errors. Some of them are models of no use that the generator made (weights of a free size,
scales of 0): look first.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError, UnsupportedError
from tensor_graphs.models.onnx.load import load_onnx
from tensor_graphs.pipeline.execution.run_program import run_flat

from .arguments import is_program, print_counts, seed_arguments
from .onnx_graph_parts import PARTS
from .onnx_graphs import Array, Graph, Step
from .oracle import APPROXIMATE, BASE, NOISE

EXACT = {"Floor", "Ceil", "Round", "Relu", "Neg", "Abs", "Sign", "Max", "Min", "Identity", "Reshape", "Transpose", "Slice", "Concat", "Gather",
         "Where", "Expand", "Tile", "Pad", "Flatten", "Squeeze", "Unsqueeze", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "TopK", "Clip"}  # fmt: skip
#: Operators whose reference is wrong in some cases: compared with ONNX Runtime only.
OTHERWISE = {"MaxPool", "LRN", "MatMulInteger", "ReduceSumSquare", "Split", "Conv", "AveragePool", "LpPool", "LpNormalization", "BatchNormalization", "GlobalMaxPool",
             "Softmax", "LogSoftmax", "Hardmax", "GlobalAveragePool", "GatherElements", "Loop", "OneHot", "ReverseSequence", "Compress", "QLinearConv", "MeanVarianceNormalization", "Erf"}  # fmt: skip
WIDER = 30.0  # times the largest movement under noise
AT = (1, 2, 3, 7, 16, 37, 0)


def walk(steps: Sequence[Step], given: Mapping[str, Array], noise: float, rng: Any) -> dict[str, Array]:
    """Values of all names, with noise in each result that rounding may have changed."""
    values = dict(given)
    for s in steps:
        for name, x in zip(s.proto.output, s(values)):
            if noise and x.dtype.kind not in "biu" and s.proto.op_type not in EXACT:
                wide = x.astype(np.float64)
                with np.errstate(all="ignore"):
                    short = (np.frexp(wide)[0] * 128 % 1 == 0) & (s.proto.op_type.lower() not in APPROXIMATE)
                    x = np.where(short, wide, wide * (1 + noise * rng.uniform(-1, 1, x.shape))).astype(x.dtype)
            values[name] = x
    return values


def undefined(steps: Sequence[Step], values: Mapping[str, Array]) -> bool:
    """Whether a number that is not finite, or outside of the range, becomes an integer, or only the reference is there
    and known to be wrong."""
    for s in steps:
        outs = [values[o] for o in s.proto.output]
        if (
            s.proto.op_type in ("Cast", "CastLike", "QuantizeLinear", "DynamicQuantizeLinear", "Shrink", "Pow", "Erf")
            and outs[0].dtype.kind in "iu"
        ):
            x = values[s.reads[0]]
            if x.dtype.kind not in "biu" and not np.abs(x.astype(np.float64)).max(initial=0) < 2**31 / (
                1 if outs[0].dtype.itemsize > 4 else 2 ** (32 - 8 * outs[0].dtype.itemsize)
            ):
                return s.proto.op_type != "QuantizeLinear" or not np.isfinite(x.astype(np.float64)).all()
    return False


def session(model: Any) -> Any:
    """An ONNX Runtime session that computes as the file says; None if it refuses the model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(model.SerializeToString(), options)
    except Exception:
        return None


def asked(there: Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Results of a session; none if it refuses the inputs."""
    try:
        return [] if there is None else [np.asarray(x) for x in there.run(None, feeds)]
    except Exception:
        return []


def distance(a: Array, b: Array) -> Array:
    """|a - b|, 0 where both are the same number or NaN."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        return np.where((a == b) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))


class Expected:
    """The values of the outputs at one choice of inputs: by the reference, by ONNX Runtime, and what noise moves."""

    def __init__(
        self, g: Graph, model: Any, given: Mapping[str, Array], initial: Mapping[str, Array], there: Any
    ) -> None:
        self.names = [o.name for o in model.graph.output]
        self.steps = [s for s in g.steps if s.proto in model.graph.node]
        self.values = {**initial, **given}
        self.want: list[Array] = []
        self.peak, self.dtype, self.undefined, self.unsure = 1.0, "float64", False, False
        self._moved: list[Array] = []
        self.ort = asked(there, {i.name: given[i.name] for i in model.graph.input})
        try:
            first = walk(self.steps, self.values, 0.0, None)
        except Exception:
            return
        self.want = [first[n] for n in self.names]
        kinds = [x.dtype.name for x in first.values() if x.dtype.name in NOISE]
        self.dtype = max(kinds, key=NOISE.__getitem__, default="float64")
        sizes = [
            float(np.abs(v[np.isfinite(v)]).max(initial=0))
            for x in first.values()
            if x.dtype.name in NOISE
            for v in [x.astype(np.float64)]
        ]
        self.peak = max([1.0, *(min(s, 1e30) for s in sizes)])
        self.undefined = undefined(self.steps, first)
        self.unsure = bool({*OTHERWISE} & {s.proto.op_type for s in self.steps}) and not self.ort

    @property
    def moved(self) -> list[Array]:
        """The largest movement of each element under noise of the size of rounding."""
        if not self._moved:
            whole = any("QLinear" in s.proto.op_type for s in self.steps)  # whose rounding no noise reaches
            self._moved = [np.full(w.shape, whole / WIDER) for w in self.want]
            for k in range(4):
                try:
                    other = walk(self.steps, self.values, max(NOISE[self.dtype], 1e-6), np.random.default_rng(k))
                except Exception:
                    continue
                for moved, n, w in zip(self._moved, self.names, self.want):
                    if other[n].shape != w.shape:
                        moved[...] = np.inf
                        continue
                    gap = distance(other[n], w)
                    np.maximum(moved, np.where(np.isnan(gap), np.inf, gap), out=moved)
        return self._moved

    def differs(self, found: Sequence[Array], want: Sequence[Array], loose: bool = True) -> str:
        """How results differ from one peer's; "" where rounding explains it."""
        for k, (f, w) in enumerate(zip(found, want)):
            f = np.asarray(f)
            if f.shape != w.shape or f.dtype != w.dtype:
                return f"output {k}: {f.dtype}{f.shape}, not {w.dtype}{w.shape}"
            gap = distance(f, w)
            base = max(BASE[self.dtype], 2e-5) * self.peak if w.dtype.name in NOISE else 0.0
            bad = ~(gap <= base)
            if bad.any() and loose and self.want and self.moved[k].shape == w.shape:
                bad = ~(gap <= base + WIDER * self.moved[k])
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                return f"output {k} ({w.dtype}{w.shape}): {int(bad.sum())} of {bad.size} differ, at {at} {f[at]!r} for {w[at]!r}"
        return ""

    def judge(self, found: Sequence[Array]) -> tuple[str, str]:
        """(kind, message) of a result."""
        if not self.want and not self.ort:
            return "ACCEPTED", ""
        if self.undefined or self.unsure:
            return "not compared", ""
        first = self.differs(found, self.want) if self.want else "no reference"
        second = self.differs(found, self.ort) if self.ort else "no ORT"
        if first and second:
            both = "" if not (self.want and self.ort) else self.differs(self.want, self.ort)
            return ("WRONG" if not both else "peers differ"), f"reference: {first}\n  ORT: {second}"
        if self.want and self.ort:
            exact = [k for k, w in enumerate(self.want) if w.dtype.kind in "biu" and np.array_equal(w, self.ort[k])]
            pick = lambda xs: [np.asarray(xs[k]) for k in exact]
            if message := self.differs(pick(found), pick(self.want), loose=False):
                return "DECIDES", message
        return "good", ""


def shown(g: Graph, model: Any) -> str:
    """The nodes, inputs and small initializers as text."""
    kept = {n for s in model.graph.node for n in s.input}
    lines = [f"opset {g.opset}"] + [
        f"  {n} = {'w' if n in g.initial else 'in'} {x.dtype}{x.shape} {x.ravel()[:6]}"
        for n, x in g.values.items()
        if n in kept and n[0] in "wx"
    ]
    for s in g.steps:
        if s.proto in model.graph.node:
            attrs = {a.name: (list(a.ints) or a.s or a.f or a.i) for a in s.proto.attribute if not a.HasField("g")}
            outs = [f"{o}:{g.values[o].dtype}{g.values[o].shape}" for o in s.proto.output]
            lines.append(f"  {', '.join(outs)} = {s.proto.op_type}({', '.join(s.proto.input)}) {attrs or ''}")
            lines += [
                f"      {a.name}: {[(n.op_type, list(n.input), list(n.output)) for n in a.g.node]}"
                for a in s.proto.attribute
                if a.HasField("g")
            ]
    return "\n".join(lines)


class Trial:
    """One graph of a seed: grown, loaded or optimized, compared at one or several sizes."""

    def __init__(self, seed: int, count: int, *, ops: Sequence[str] = (), parts: Sequence[Any] = PARTS) -> None:
        self.g = Graph(seed)
        self.g.grow(count, parts, ops)
        rng = self.g.rng
        self.free: dict[int, str] = {}
        there = sorted({d for n in self.g.given for d in self.g.values[n].shape})
        for _ in range(3 if there and rng.random() < 0.5 else 0):
            self.free = dict(zip(rng.sample(there, min(rng.choice((1, 2)), len(there))), ("N", "seq")))
            if self.means({"N": 5, "seq": 9}):
                break
            self.free = {}
        self.backend = rng.choice(("numpy", "c", "c", "torch"))
        self.options: dict[str, Any] = {"budget": 1.5, "verify": rng.random() < 0.4, "measure": False}
        self.points: list[tuple[dict[str, int], dict[str, Array]]] = [({}, {n: self.g.values[n] for n in self.g.given})]
        for _ in range(3):
            sizes = {n: rng.choice(AT) for n in self.free.values()}
            if (
                sum(np.prod([sizes.get(self.free.get(d, ""), d) for d in self.g.values[n].shape]) for n in self.g.given)
                > 20000
            ):
                sizes = dict.fromkeys(sizes, 5)
            self.points.append((sizes, self.given(sizes)))

    def means(self, sizes: Mapping[str, int]) -> bool:
        """Whether the reference evaluator computes the graph at these sizes."""
        try:
            walk(self.g.steps, {**self.given(sizes), **{n: self.g.values[n] for n in self.g.initial}}, 0.0, None)
        except Exception:
            return False
        return True

    def given(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """New inputs, at other free sizes. Integers are those of the graph in another order, so that indices stay
        within."""
        now, g = {d: sizes.get(name, d) for d, name in self.free.items()}, self.g
        shapes = {n: [now.get(d, d) for d in g.values[n].shape] for n in g.given}
        return {n: g.np.choice(g.values[n].ravel(), s) if g.values[n].dtype.kind in "iu" and g.values[n].size else g.draw(s, g.values[n].dtype)
                for n, s in shapes.items()}  # fmt: skip

    @staticmethod
    def sizes(loaded: Any) -> dict[str, int]:
        """Sizes at which the program is searched."""
        return {name: 6 + i for i, name in enumerate(loaded.free_dims)}

    def run(self, folder: Path, program: bool, ends: Sequence[str] = ()) -> tuple[str, str]:
        """(kind, message)."""
        g = self.g
        if not g.steps:
            return "nothing", ""
        model = g.model(ends, self.free)
        there = session(model)
        if there is None and g.rng.random() < 0.8:  # the results that ONNX Runtime gives, if there are any
            some = [o.name for o in model.graph.output if session(g.model([o.name], self.free)) is not None]
            if some:
                model = g.model(some, self.free)
                there = session(model)
        file = folder / "m.onnx"
        file.write_bytes(model.SerializeToString())
        initial = {n: g.values[n] for n, t in g.initial.items()}
        wanted = [Expected(g, model, values, initial, there) for _, values in self.points]
        said = ""
        try:
            with np.errstate(all="ignore"):
                loaded = load_onnx(file)
                call = lambda feeds: evaluate(bound(loaded, feeds), feeds)
                if program:
                    made = tg.optimize(file, backend=self.backend, dims=self.sizes(loaded), **self.options)
                    call = lambda feeds: run_flat(made, feeds)
        except UnsupportedError as error:
            return f"unsupported {str(error.missing)[:60]}", ""
        except TensorGraphsError as error:
            if "does not fit into" in str(error) or "deprecated" in str(error):
                return "refused as stated", ""
            both = all(w.want and w.ort for w in wanted)
            kind = (
                "REFUSED"
                if both
                else "refused, ORT alone"
                if all(w.ort for w in wanted)
                else "refused, reference alone"
                if all(w.want for w in wanted)
                else "refused"
            )
            return kind, f"{type(error).__name__}: {str(error)[:400]}"
        except Exception as error:
            return "RAW", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
        used = [i.name for i in model.graph.input]
        for (sizes, values), want in zip(self.points, wanted):
            feeds = {n: x for n, x in values.items() if n in used}
            try:
                with np.errstate(all="ignore"):
                    found = [np.asarray(x) for x in call(feeds)]
            except TensorGraphsError as error:
                if not want.want or not want.ort or 0 in sizes.values():
                    said = said or "one call refused"
                    continue
                if "is outside" in str(error) or "does not fit into" in str(error):
                    said = "outside of the sizes of the program"
                    continue
                return "REFUSED", f"at {sizes}: {type(error).__name__}: {str(error)[:400]}"
            except Exception as error:
                if not want.want and not want.ort:
                    said = (
                        said or f"raised as peers did ({type(error).__name__})" if not program else "RAW at bad sizes"
                    )
                    continue
                return "RAW", f"at {sizes}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
            kind, message = want.judge(found)
            if kind not in ("good", "ACCEPTED", "not compared"):
                return (
                    kind,
                    f"at {sizes}: {message}\n  inputs {[(n, x.ravel()[:8].tolist()) for n, x in feeds.items()]}",
                )
            if kind == "ACCEPTED":
                said = "accepted at other sizes or without a peer"
        return said or "good", ""


def bound(graph: Any, feeds: Mapping[str, Array]) -> Any:
    """The loaded graph at the sizes of the inputs."""
    sizes: dict[str, int] = {}
    for leaf in graph.inputs:
        for d, s in zip(leaf.shape, feeds[str(leaf.attr("name"))].shape):
            if not isinstance(d, int) and str(d) in graph.free_dims:
                sizes[str(d)] = s
    return graph.bind(sizes) if sizes else graph


def tried(seed: int, folder: Path, program: bool, count: int = 0, ops: Sequence[str] = ()) -> tuple[str, str]:
    """(kind, message) of a seed; a failure is cut to the first output that shows it."""
    trial = Trial(seed, count or 1 + seed % 8, ops=ops)
    kind, message = trial.run(folder, program)
    if not kind.isupper() and not kind.startswith("refused,"):
        return kind, message
    ends: list[str] = []  # the first output alone that shows it, else all
    for end in (end for s in trial.g.steps for end in s.proto.output):
        small, text = trial.run(folder, program, [end])
        if small.split()[0] == kind.split()[0]:
            ends, message = [end], text
            break
    how = f"{trial.backend} {trial.options}" if program else "loaded "
    return kind, f"{how} free {trial.free}\n{shown(trial.g, trial.g.model(ends))}\n{message}"


def _child(pipe: Any, seed: int, share: float) -> None:
    os.environ["TENSOR_GRAPHS_HOME"] = os.environ.get("TENSOR_GRAPHS_HOME", tempfile.mkdtemp())
    import warnings

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        while True:
            program = is_program(seed, share)
            pipe.send((seed, "begins", "", program))
            try:
                kind, message = tried(seed, Path(folder), program)
            except Exception as error:
                kind, message = "GENERATOR", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            pipe.send((seed, kind, message, program))
            seed += 1


def main() -> None:
    """Run the command line described above."""
    given = seed_arguments(__doc__, "graphs", "loaded").parse_args()
    if given.once:
        with tempfile.TemporaryDirectory() as folder:
            print(*tried(given.seed, Path(folder), given.programs >= 1), sep="\n")
        return
    fork = multiprocessing.get_context("fork")
    counts, end, seed = Counter[str](), time.monotonic() + given.seconds, given.seed
    seeds = 0
    while time.monotonic() < end:
        mine, other = fork.Pipe()
        child = fork.Process(target=_child, args=(other, seed, given.programs))
        child.start()
        other.close()
        while time.monotonic() < end:
            if not mine.poll(given.limit):
                print(f"=== SLOW seed {seed}", flush=True)
                counts["SLOW"] += 1
                break
            try:
                seed, kind, message, program = mine.recv()
            except EOFError:
                print(f"=== CRASH seed {seed}", flush=True)
                counts["CRASH"] += 1
                break
            if kind == "begins":
                continue
            seeds += 1
            counts[f"{'program ' if program else ''}{kind}"] += 1
            if (kind.isupper() and kind != "ACCEPTED") or (given.show and given.show in kind):
                print(f"=== {kind} seed {seed} {'program' if program else ''} {message}", flush=True)
        seed += 1
        child.kill()
        child.join()
    print(f"{seeds} graphs, seeds {given.seed} to {seed}")
    print_counts(counts)


if __name__ == "__main__":
    main()
