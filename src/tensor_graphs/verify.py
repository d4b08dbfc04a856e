"""Is the plan right? Its outputs against the original graph in float64, with the tolerance that was asked for.

The measure is the relative Frobenius error ‖y − r‖ / ‖r‖ against the float64 run r of the original. What is allowed
depends on what the original graph itself loses when run in its own dtypes: 1.25 times that for "eager", 2 times for
"fast", plus two units in the last place of the output dtype. NaN and infinities must stand where the reference, or the
unoptimized graph in its own dtypes, has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .backends.exchange import array_of, is_torch
from .costdb.device import gpu_facts
from .egraph import dtypes
from .egraph.dims import concrete
from .egraph.dtypes import HALVES
from .egraph.graph import Graph, Tensor
from .egraph.interpret import evaluate, expand_all
from .errors import UsageError
from .extract.clock import Halted
from .room import in_and_out

Array = np.ndarray[Any, Any]
Tolerance = str | float
Values = dict[str, Any]  # inputs and states by name: arrays, or tensors on one device

FACTORS = {"eager": 1.25, "fast": 2.0}
MISCOMPILE = 1e3  # an error this many times the allowed one, and
WRONG = 0.02  # beyond this in itself, is no rounding
NEAR_TIES = 0.01  # share of integers and bools that may differ: an argmax or a comparison of nearly equal numbers
MOSTLY = 0.5  # integers and bools: more wrong places than this are no near-ties
LARGE_FLOPS = 2e10  # above this, one seed instead of three (the report says so)
LARGE_BYTES = 1 << 28  # of inputs and outputs: above this too


@dataclass(frozen=True)
class OutputError:
    """One output's errors, worst over seeds."""

    name: str
    plan: float  # relative Frobenius error of the plan against float64
    original: float  # the same of the unoptimized graph in its own dtypes
    allowed: float
    finite: bool = True  # NaN and infinities stand where they may
    discrete: bool = False  # of integers and bools, or bit by bit: `plan` is the share of places that differ
    off: float | None = None  # relative error of floats that are compared bit by bit

    @property
    def passed(self) -> bool:
        """Within tolerance, and NaN and infinities in place."""
        return self.finite and self.plan <= self.allowed

    @property
    def said(self) -> str:
        """What is wrong with it, in words."""
        away = f"is off by {self.plan:.3g}" if self.finite else "has NaN or infinities where they may not be"
        return f"output {self.name!r} {away}"

    @property
    def miscompiled(self) -> bool:
        """Beyond anything that rounding explains."""
        if self.off is not None:
            return not self.finite or not self.off <= max(MISCOMPILE * self.original, WRONG)
        limit = MOSTLY if self.discrete else max(MISCOMPILE * self.allowed, WRONG)
        return not self.finite or not self.plan <= limit


@dataclass(frozen=True)
class Verification:
    """The verdict on one program."""

    outputs: tuple[OutputError, ...]
    seeds: int
    tolerance: Tolerance
    note: str = ""
    attempts: int = 1
    dropped: tuple[str, ...] = field(default_factory=tuple)  # kernels excluded on the way
    left_out: int = 0  # inputs that it was not run on for want of time
    compared: float = 1.0  # least share of an output's elements that were compared

    @property
    def passed(self) -> bool:
        """Whether every output is within tolerance."""
        return all(o.passed for o in self.outputs)

    @property
    def miscompiled(self) -> bool:
        """Whether some output is wrong beyond rounding."""
        return any(o.miscompiled for o in self.outputs)

    @property
    def cut(self) -> str:
        """What there was no time for, in words."""
        if self.compared < 1.0:
            return f"verification of {100 * (1 - self.compared):.3g} % of the outputs' elements"
        return f"verification on {self.left_out} of {self.left_out + self.seeds} inputs" if self.left_out else ""

    @property
    def worst(self) -> OutputError:
        """The output that is nearest to, or farthest beyond, what is allowed."""
        return max(self.outputs, key=lambda o: (not o.finite, o.plan / max(o.allowed, 1e-30)))

    def of_unoptimized(self) -> Verification:
        """The verdict where the program is the unoptimized graph itself: its error on this backend is the measure, as the
        interpreter's may be smaller by luck (an output of one number has no average)."""
        outputs = tuple(
            replace(o, original=max(o.original, o.plan), allowed=max(o.allowed, o.plan)) for o in self.outputs
        )
        note = "the unoptimized graph: rewritten ones lost more than the interpreter's rounding allows"
        return replace(self, outputs=outputs, note="; ".join(filter(None, (self.note, note))))

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        w = self.worst
        return {
            "passed": self.passed, "error_before": w.original, "error_after": w.plan, "allowed": w.allowed,
            "seeds": self.seeds, "tolerance": self.tolerance, "note": self.note, "dropped": list(self.dropped),
            "compared": self.compared,
        }  # fmt: skip


def sample_inputs(
    leaves: Sequence[Tensor], rng: np.random.Generator, bounds: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Random values for inputs and states: floats from a unit normal, bools by coin, ints below `bounds[name]` (default 2):
    different ones along each axis that is short enough, for which of two writes to one place comes last is not defined.
    Floats and bools of more than DRAWN elements repeat after PERIOD elements."""
    found = {}
    for leaf in leaves:
        shape, name = concrete(leaf.shape), str(leaf.attr("name"))
        kind = dtypes.category(leaf.dtype)
        target = dtypes.numpy_dtype(leaf.dtype)
        if kind in ("float", "bool") and math.prod(shape) > DRAWN:
            found[name] = _repeated(_drawn(kind, (PERIOD,), target, rng), shape)
        elif kind in ("float", "bool"):
            found[name] = _drawn(kind, shape, target, rng)
        else:
            found[name] = random_indices(shape, max(1, (bounds or {}).get(name, 2)), rng).astype(target)
    return found


DRAWN = 1 << 26
PERIOD = (1 << 24) + 43  # a prime: no stride and no block of a kernel is a multiple of it


def _drawn(kind: str, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Array:
    """Random floats or bools."""
    return (
        np.asarray(rng.standard_normal(shape)).astype(dtype) if kind == "float" else np.asarray(rng.random(shape) < 0.5)
    )


def _repeated(block: Array, shape: tuple[int, ...]) -> Array:
    """An array of some shape that holds a block of one axis again and again."""
    found = np.empty(math.prod(shape), block.dtype)
    for start in range(0, found.size, block.size):
        found[start : start + block.size] = block[: found.size - start]
    return found.reshape(shape)


def random_indices(shape: tuple[int, ...], bound: int, rng: np.random.Generator) -> Array:
    """Random integers below a bound: a Latin square of sorts, with no value twice along an axis that is not longer than it."""
    if math.prod(shape) == 0:
        return np.zeros(shape, np.int64)
    steps = (rng.permutation(n).reshape(-1, *[1] * (len(shape) - 1 - i)) for i, n in enumerate(shape))
    places = np.broadcast_to(sum(steps, start=rng.integers(bound)), shape) % bound
    return np.asarray(rng.permutation(bound)[places] if bound <= PIECE else places)


def index_bounds(graph: Graph) -> dict[str, int]:
    """For integer inputs that index something (through views and casts): the smallest size that they index."""
    source: dict[int, set[str]] = {}
    bounds: dict[str, int] = {}
    for node in graph.nodes():
        if node.op in ("input", "state"):
            source[id(node)] = {str(node.attr("name"))}
            continue
        passed = {"cast", "where", "add", "minimum", "maximum"} | {
            "reshape",
            "permute",
            "slice",
            "broadcast_to",
            "concat",
        }
        source[id(node)] = (
            set().union(*(source[id(a)] for a in node.args)) if node.op in passed and node.args else set()
        )
        if node.op in ("gather", "gather_elements", "scatter_elements", "cross_entropy"):
            size = node.args[0].shape[1 if node.op == "cross_entropy" else node.attr("axis")]
            for name in source[id(node.args[1])]:
                if isinstance(size, int):
                    bounds[name] = min(bounds.get(name, size), size)
    return bounds


def sampled_near(graph: Graph, rng: np.random.Generator, device: str = "") -> Values:
    """Random values for a graph's inputs: tensors on a device of Torch's, or arrays ("", or where they are too large)."""
    if not device or not _fits(device, sum(t.type.nbytes for t in graph.inputs)):
        return sample_inputs(graph.inputs, rng, index_bounds(graph))
    from .on_device import sample_tensors

    return sample_tensors(graph.inputs, rng, index_bounds(graph), device)


KEPT_BYTES = 1 << 22  # of outputs whose reference stays while a program runs at other sizes, and between those
PIECE = 1 << 20  # elements compared at a time: large outputs need no float64 copies as a whole


def _pieces(*arrays: Array) -> Iterator[list[Array]]:
    """The same stretches of arrays of one shape, in float64."""
    flat = [np.asarray(a).reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, PIECE):
        yield [a[start : start + PIECE].astype(np.float64) for a in flat]


def relative_error(value: Array, reference: Array) -> float:
    """‖value − reference‖ / ‖reference‖ in float64 over the finite places; 0 for two empty or two zero arrays."""
    scale = gap = 0.0
    for v, r in _pieces(value, reference):
        fine = np.isfinite(v) & np.isfinite(r)
        scale = math.hypot(scale, float(np.linalg.norm(r[fine])))
        gap = math.hypot(gap, float(np.linalg.norm(v[fine] - r[fine])))
    return share(gap, scale)


def misplaced(value: Array, reference: Array, original: Array) -> bool:
    """Whether NaN, +inf, -inf or a finite number stands where neither the reference nor the original run has it."""

    def kind(x: Array) -> Array:
        return np.where(np.isnan(x), 3, np.where(np.isposinf(x), 2, np.where(np.isneginf(x), 1, 0)))

    for v, r, o in (map(kind, piece) for piece in _pieces(value, reference, original)):
        if not np.all((v == r) | (v == o)):
            return True
    return False


def allowed_error(tolerance: Tolerance, original: float, dtype: str) -> float:
    """The largest relative error that the tolerance allows for an output of a dtype."""
    if isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and tolerance >= 0:
        return float(tolerance)
    if tolerance == "exact":
        return 0.0
    if not isinstance(tolerance, str) or tolerance not in FACTORS:
        raise UsageError(f"tolerance {tolerance!r}", hint='one of "eager", "fast", "exact", or a number')
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}.get(dtype, 2.0**-23)
    return FACTORS[tolerance] * original + 2 * ulp


def spare(tolerance: Tolerance) -> float:
    """What a kernel may lose by rounding operands to fewer digits than they have (relative), so that it is worth trying: all that
    is allowed where that is a number, else two units in the last place of float32, and nothing where every bit counts."""
    return allowed_error(tolerance, 0.0, "float32")


Reference = tuple[Values, list[Any], list[Any]]  # values, float64 run, own-dtype run


def verify(
    graph: Graph,
    run: Callable[[Mapping[str, Any]], Sequence[Any]],
    *,
    tolerance: Tolerance = "eager",
    seed: int = 0,
    flops: float = 0.0,
    seeds: int | None = None,
    references: dict[int, Reference] | None = None,
    device: str = "",
    enough: Callable[[], bool] = lambda: False,
    poll: Callable[[], object] = lambda: None,
) -> Verification:
    """Compare `run` (inputs and states by name -> outputs, then updates) with the graph on random inputs, of three seeds
    unless the model is large or `seeds` says otherwise.

    `references` keeps (inputs, float64 run, own-dtype run) per seed between attempts on the same graph. `device`: Torch's name
    of the device that `run` takes and gives tensors of; there all is drawn, computed and compared (arrays on the host: "").
    Outputs of more than LARGE_BYTES, inputs included, are compared strip by strip where they can be computed so (strips.py).
    `enough`: asked before each seed but the first; where it says so the rest is left out, and the verdict says that. `poll` is
    called before every operation of a reference run: Halted there ends the verification, before the first seed's end by Halted.
    """
    size = in_and_out(graph)
    planned = seeds or (1 if flops > LARGE_FLOPS or size > LARGE_BYTES else 3)
    if tolerance == "exact" or (device and not _fits(device, planned * size)):
        device = ""
    if not device and size > LARGE_BYTES and tolerance != "exact":
        from .strips import strips_of, verify_strips

        if cuts := strips_of(graph):
            return verify_strips(graph, run, cuts, tolerance=tolerance, seed=seed, enough=enough, poll=poll)
    weights = _weights_there(graph, device)
    known = references if references is not None else {}
    names = [*graph.names, *(f"update of {u}" for u in graph.updates)]
    worst: dict[str, list[OutputError]] = {n: [] for n in names}
    seeds = 0
    while seeds < planned and not (seeds and enough()):
        if seeds not in known:
            drawing = np.random.default_rng((seed, seeds))
            try:
                known[seeds] = _reference(graph, drawing, device, tolerance == "exact", poll, weights)
            except Halted:
                if not seeds:
                    raise
                break
        inputs, exact, own = known[seeds]
        found = run({n: v.clone() if is_torch(v) else v.copy() for n, v in inputs.items()})
        for name, root, y, r, o in zip(names, graph.roots, found, exact, own, strict=True):
            worst[name].append(_compare(name, root.dtype, y, r, o, tolerance))
        seeds += 1
    outputs = tuple(max(worst[n], key=lambda o: (not o.finite, o.plan / max(o.allowed, 1e-30))) for n in names)
    note = f"one input, the model has {flops / 1e9:.0f} GFLOP, {size >> 20} MiB in and out" if planned == 1 else ""
    note = f"{seeds} of {planned} inputs, no time was left for more" if seeds < planned else note
    return Verification(outputs, seeds, tolerance, note, left_out=planned - seeds)


def first_reference(
    graph: Graph, device: str, *, seed: int = 0, poll: Callable[[], object] = lambda: None
) -> dict[int, Reference]:  # fmt: skip
    """What `verify` compares with on its first input, computed on a device before there is a program: `references` for it. Empty where
    that has no room. Halted by `poll`."""
    if not _fits(device, 3 * in_and_out(graph)):
        return {}
    import torch

    from .on_device import reference_tensors

    with suppress(torch.OutOfMemoryError):
        drawing = np.random.default_rng((seed, 0))
        return {0: reference_tensors(graph, drawing, device, poll, _weights_there(graph, device))}
    return {}


HOST_FLOPS, HOST_BYTES = 2e10, 1e9  # about, a second, of reference runs on the host
DEVICE_FLOPS, DEVICE_BYTES = 1e13, 1e11  # the same on a GPU


def expected_seconds(graph: Graph, flops: float, on_gpu: bool) -> float:
    """About how long verification on one input takes: two runs, each of whose values is written and read once or twice."""
    nbytes = sum(n.type.nbytes for n in graph.nodes() if n.args)
    rates = (DEVICE_FLOPS, DEVICE_BYTES) if on_gpu else (HOST_FLOPS, HOST_BYTES)
    return 2 * flops / rates[0] + 4 * nbytes / rates[1]


def _fits(device: str, nbytes: int) -> bool:
    from .on_device import fits

    return fits(device, nbytes)


def _weights_there(graph: Graph, device: str) -> dict[str, Any] | None:
    if not device:
        return None
    from .on_device import room_for_weights

    return room_for_weights(graph, device)


def _reference(
    graph: Graph, rng: np.random.Generator, device: str, bitwise: bool, poll: Callable[[], object],
    weights: dict[str, Any] | None = None,
) -> Reference:  # fmt: skip
    """Inputs, the float64 run, and the run in the graph's own dtypes: on the program's device; else as arrays, which a GPU
    computes if there is one and bits do not count."""
    if device:
        import torch

        from .on_device import reference_tensors

        with suppress(torch.OutOfMemoryError):
            return reference_tensors(graph, rng, device, poll, weights)
        if weights is not None:
            weights.clear()
        torch.cuda.empty_cache()  # the host has more memory, and takes more time
    leaves = [*graph.inputs, *graph.leaves("state")]
    inputs = sample_inputs(leaves, rng, index_bounds(graph))
    graph = graph.with_roots(expand_all(graph.roots, wide_means=not bitwise))
    if not bitwise and not device and gpu_facts():
        import torch

        from .backends.torch_reference import evaluate_graph

        with suppress(torch.OutOfMemoryError):
            return inputs, evaluate_graph(graph, inputs, float64=True), evaluate_graph(graph, inputs)
        torch.cuda.empty_cache()
    with np.errstate(all="ignore"):
        wide = evaluate(graph, inputs, float64=True, poll=poll)
        exact = [_kept(r, root.dtype) for r, root in zip(wide, graph.roots)]
        del wide
        return inputs, exact, evaluate(graph, inputs, whole=bitwise, poll=poll)


def _kept(exact: Array, dtype: str) -> Array:
    """A float64 run's result as it is kept: beside numbers of 16 bits, whose last place is 2**13 times as large or more, what
    float32 rounds away cannot be seen."""
    if dtype not in HALVES:
        return exact
    with np.errstate(over="ignore"):
        kept = exact.astype(np.float32)
    return kept if np.array_equal(np.isfinite(kept), np.isfinite(exact)) else exact


def _compare(name: str, dtype: str, y: Any, exact: Any, own: Any, tolerance: Tolerance) -> OutputError:
    """How far an output is off, where its reference is: among tensors on a device, or among arrays."""
    errors: Any = _errors
    unequal: Any = _unequal
    if is_torch(exact):
        from . import on_device

        y, errors, unequal = on_device.near(y, exact), on_device.errors, on_device.unequal
    else:
        y = array_of(y) if is_torch(y) else np.asarray(y)
    if not dtypes.is_float(dtype):
        share = unequal(y, own)
        loose = 0.0 if tolerance == "exact" or not share else NEAR_TIES
        return OutputError(name, share, 0.0, loose, discrete=True)
    if tolerance == "exact":
        share = unequal(y, own)
        if not share or y.shape != exact.shape:
            return OutputError(name, share, 0.0, 0.0, discrete=True)
        off, original, finite = errors(y, exact, own)
        return OutputError(name, share, original, 0.0, finite, discrete=True, off=off)
    if y.shape != exact.shape:
        original = errors(own, exact, own)[1]
        return OutputError(name, float("inf"), original, allowed_error(tolerance, original, dtype), False)
    plan, original, finite = errors(y, exact, own)
    return OutputError(name, plan, original, allowed_error(tolerance, original, dtype), finite)


def _unequal(y: Array, own: Array) -> float:
    """Share of the places where bits differ, one NaN being as good as another; 1 for another shape."""
    if y.shape != own.shape:
        return 1.0
    if not dtypes.is_float(dtypes.name_of(own.dtype)):
        return float(np.mean(y != own)) if own.size else 0.0
    same = ((y == own) & (np.signbit(y) == np.signbit(own))) | (np.isnan(y) & np.isnan(own))
    return float(np.mean(~same)) if own.size else 0.0


def _errors(y: Array, exact: Array, own: Array) -> tuple[float, float, bool]:
    """Relative errors of two runs, and whether the first has no NaN and infinities of its own: `relative_error` of both and
    `misplaced` in one pass over the data."""
    found = Errors()
    for v, r, o in _pieces(y, exact, own):
        found.add(v, r, o)
    return found.plan, found.original, found.finite


@dataclass
class Errors:
    """Relative Frobenius errors of two runs against a reference, from pieces of them: of a plan and of the unoptimized graph.
    `finite`: whether the plan has NaN and infinities only where one of the others has."""

    plan_gap: float = 0.0
    plan_scale: float = 0.0
    own_gap: float = 0.0
    own_scale: float = 0.0
    finite: bool = True

    def add(self, v: Array, r: Array, o: Array) -> None:
        """Count a piece in: the plan's, the reference's and the unoptimized graph's, float64 and of one shape."""
        seen: Any
        known: Any
        if all(np.isfinite(x).all() for x in (v, r, o)):
            seen = known = slice(None)
        else:
            self.finite = self.finite and not misplaced(v, r, o)
            seen, known = np.isfinite(v) & np.isfinite(r), np.isfinite(o) & np.isfinite(r)
        norm = float(np.linalg.norm(r[seen]))
        self.plan_gap = math.hypot(self.plan_gap, float(np.linalg.norm(v[seen] - r[seen])))
        self.plan_scale = math.hypot(self.plan_scale, norm)
        self.own_gap = math.hypot(self.own_gap, float(np.linalg.norm(o[known] - r[known])))
        self.own_scale = math.hypot(self.own_scale, norm if known is seen else float(np.linalg.norm(r[known])))

    @property
    def plan(self) -> float:
        """Relative error of the plan."""
        return share(self.plan_gap, self.plan_scale)

    @property
    def original(self) -> float:
        """Relative error of the unoptimized graph."""
        return share(self.own_gap, self.own_scale)


def share(gap: float, scale: float) -> float:
    return gap / scale if scale > 0 else (0.0 if gap == 0 else float("inf"))
