"""Is the plan right? Its outputs against the original graph in float64, with the tolerance that was asked for.

The measure of a float output is the relative Frobenius error ‖y − r‖ / ‖r‖ against the float64 run r of the original. What is
allowed depends on what the original graph itself loses when run in its own dtypes: 1.25 times that for "eager", 2 times for
"fast", plus two units in the last place of the output dtype. Every place and every slice has a limit of its own beside that
(`backends/compare.py`), so that nothing small hides beside large values. NaN and infinities must stand where the reference, or the
unoptimized graph in its own dtypes, has them. Whole numbers and truth values must be equal.

Only where rounding decides a value (near ties, numbers beside a jump, cancellation) may it differ: further float64 runs in which
every value is off by the size of its rounding say where that is (`backends/disturb.py`). They are made only if something differs,
and the places are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .backends import compare, drawing
from .backends.compare import Worst
from .backends.disturb import Disturbed
from .backends.drawing import index_bounds, random_indices
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
FAR = 10.0  # times what is allowed: an output that is farther off is so as a whole
ODD = 4.0  # times what is allowed where inputs have a few large numbers, which alone make up an output's norm
LARGE_FLOPS = 2e10  # above this, one seed instead of three (the report says so)
LARGE_BYTES = 1 << 28  # of inputs and outputs: above this too


NOWHERE = Worst()


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
    worst: Worst = NOWHERE  # the place or slice that is nearest to its own limit, or farthest beyond

    @property
    def passed(self) -> bool:
        """Within tolerance as a whole, in every slice and at every place, and NaN and infinities in place."""
        return self.finite and self.excess <= 1

    @property
    def excess(self) -> float:
        """The error over what is allowed: of the whole, or of the worst place or slice if that is more; beyond 1 it fails."""
        whole = self.plan / self.allowed if self.allowed else (math.inf if self.plan else 0.0)
        return whole if self.discrete else max(whole, self.worst.ratio)

    @property
    def said(self) -> str:
        """What is wrong with it, in words."""
        away = f"is off by {self.plan:.3g}" if self.finite else "has NaN or infinities where they may not be"
        place = f" ({self.worst.said if not self.discrete else self.worst.where})" if self.worst.where else ""
        return f"output {self.name!r} {away}, allowed {self.allowed:.3g}{place}"

    @property
    def miscompiled(self) -> bool:
        """Beyond anything that rounding explains."""
        if not self.finite:
            return True
        if self.off is not None:
            return not self.off <= max(MISCOMPILE * self.original, WRONG)
        if self.discrete:
            return self.plan > 0
        local = self.worst.ratio > MISCOMPILE and self.worst.relative > WRONG
        return local or not self.plan <= max(MISCOMPILE * self.allowed, WRONG)


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
        return max(self.outputs, key=lambda o: (not o.finite, o.excess))

    def of_unoptimized(self) -> Verification:
        """The verdict where the program is the unoptimized graph itself: its error on this backend is the measure, as the
        interpreter's may be smaller by luck (an output of one number has no average)."""
        outputs = tuple(
            replace(o, original=max(o.original, o.plan), allowed=max(o.allowed, o.plan),
                    worst=replace(o.worst, ratio=min(o.worst.ratio, 1.0)))
            for o in self.outputs
        )  # fmt: skip
        note = "the unoptimized graph: rewritten ones lost more than the interpreter's rounding allows"
        return replace(self, outputs=outputs, note="; ".join(filter(None, (self.note, note))))

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        w = self.worst
        return {
            "passed": self.passed, "error_before": w.original, "error_after": w.plan, "allowed": w.allowed,
            "seeds": self.seeds, "tolerance": self.tolerance, "note": self.note, "dropped": list(self.dropped),
            "worst_place": w.worst.where, "worst_place_over_limit": w.worst.ratio,
            "places_that_rounding_decides": sum(o.worst.exempt for o in self.outputs),
            "compared": self.compared,
        }  # fmt: skip


def sample_inputs(
    leaves: Sequence[Tensor], rng: np.random.Generator, bounds: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Random values for inputs and states: floats from a unit normal, bools by coin, ints below `bounds[name]` (default 2):
    different ones along each axis that is short enough, for which of two writes to one place comes last is not defined."""
    found = {}
    for leaf in leaves:
        shape, name = concrete(leaf.shape), str(leaf.attr("name"))
        kind = dtypes.category(leaf.dtype)
        target = dtypes.numpy_dtype(leaf.dtype)
        if kind == "float":
            found[name] = np.asarray(rng.standard_normal(shape)).astype(target)
        elif kind == "bool":
            found[name] = np.asarray(rng.random(shape) < 0.5)
        else:
            found[name] = random_indices(shape, max(1, (bounds or {}).get(name, 2)), rng).astype(target)
    return found


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
    return compare.Measured(np.asarray(value), np.asarray(reference, np.float64), None).errors[0]


def misplaced(value: Array, reference: Array, original: Array) -> bool:
    """Whether NaN, +inf, -inf or a finite number stands where neither the reference nor the original run has it."""
    dtype = dtypes.name_of(np.asarray(original).dtype)
    return any(compare.misplaced(np, v, r, o, dtype).any() for v, r, o in _pieces(value, reference, original))


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
    if tolerance == "exact" or (device and (_unsigned(graph) or not _fits(device, planned * size))):
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
            draw = np.random.default_rng((seed, seeds))
            try:
                known[seeds] = _reference(graph, draw, device, tolerance == "exact", poll, weights, seeds)
            except Halted:
                if not seeds:
                    raise
                break
        inputs, exact, own = known[seeds]
        found = run({n: v.clone() if is_torch(v) else v.copy() for n, v in inputs.items()})
        there = device if any(map(is_torch, inputs.values())) else ""
        disturbed = Disturbed(_expanded(graph), inputs, there, weights, poll)
        slack = ODD if seeds == 1 and tolerance in FACTORS else 1.0
        try:
            for k, (name, root, y, r, o) in enumerate(zip(names, graph.roots, found, exact, own, strict=True)):
                judged = compare_output(name, root.dtype, y, r, o, tolerance, slack)
                worst[name].append(_reconsidered(judged, k, y, r, o, disturbed, root.dtype))
        except Halted:
            if not seeds:
                raise
            break
        seeds += 1
    outputs = tuple(of_all(worst[n][:seeds]) for n in names)
    note = f"one input, the model has {flops / 1e9:.0f} GFLOP, {size >> 20} MiB in and out" if planned == 1 else ""
    note = f"{seeds} of {planned} inputs, no time was left for more" if seeds < planned else note
    return Verification(outputs, seeds, tolerance, note, left_out=planned - seeds)


def first_reference(
    graph: Graph, device: str, *, seed: int = 0, poll: Callable[[], object] = lambda: None
) -> dict[int, Reference]:  # fmt: skip
    """What `verify` compares with on its first input, computed on a device before there is a program: `references` for it. Empty where
    that has no room. Halted by `poll`."""
    if _unsigned(graph) or not _fits(device, 3 * in_and_out(graph)):
        return {}
    import torch

    from .on_device import reference_tensors

    with suppress(torch.OutOfMemoryError):
        draw = np.random.default_rng((seed, 0))
        return {0: reference_tensors(graph, draw, device, poll, _weights_there(graph, device))}
    return {}


def _expanded(graph: Graph) -> Graph:
    return graph.with_roots(expand_all(graph.roots, wide_means=True))


def of_all(found: Sequence[OutputError]) -> OutputError:
    """The worst of one output's errors on several inputs, with the exempt places of all of them."""
    worst = max(found, key=lambda o: (not o.finite, o.excess))
    return replace(worst, worst=replace(worst.worst, exempt=sum(o.worst.exempt for o in found)))


def _reconsidered(
    judged: OutputError, k: int, y: Any, exact: Any, own: Any, disturbed: Disturbed, dtype: str
) -> OutputError:
    """An output's errors without the places whose value rounding decides, where it is beyond its limits otherwise. What the norm
    of the whole may be stays."""
    if judged.passed or judged.off is not None or tuple(y.shape) != tuple(exact.shape):
        return judged
    discrete = not dtypes.is_float(dtype)
    if not discrete and (not judged.finite or judged.plan > FAR * judged.allowed):
        return judged
    if judged.discrete and not discrete:
        return judged  # bit by bit
    y = _near(y, exact)
    while judged.worst.ratio > (0 if discrete else 1) and disturbed.further():
        if discrete:
            place = compare.differing(y, own, exact, disturbed.moved[k])
            judged = replace(judged, plan=place.ratio, worst=place)
        else:
            place = compare.worst(y, exact, own, dtype, judged.allowed, disturbed.moved[k])
            judged = replace(judged, worst=place)
    return judged


def _near(y: Any, like: Any) -> Any:
    """An output as its reference is: an array, or a tensor on its device."""
    if is_torch(like):
        from .on_device import near

        return near(y, like)
    return array_of(y) if is_torch(y) else np.asarray(y)


HOST_FLOPS, HOST_BYTES = 2e10, 1e9  # about, a second, of reference runs on the host
DEVICE_FLOPS, DEVICE_BYTES = 1e13, 1e11  # the same on a GPU


def expected_seconds(graph: Graph, flops: float, on_gpu: bool) -> float:
    """About how long verification on one input takes: two runs, each of whose values is written and read once or twice."""
    nbytes = sum(n.type.nbytes for n in graph.nodes() if n.args)
    rates = (DEVICE_FLOPS, DEVICE_BYTES) if on_gpu else (HOST_FLOPS, HOST_BYTES)
    return 2 * flops / rates[0] + 4 * nbytes / rates[1]


def _unsigned(graph: Graph) -> bool:
    """Whether whole numbers without a sign are computed with that Torch does not compare."""
    return any(n.dtype in ("uint16", "uint32", "uint64") for n in graph.nodes())


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
    weights: dict[str, Any] | None = None, turn: int = 0,
) -> Reference:  # fmt: skip
    """Inputs, the float64 run, and the run in the graph's own dtypes: on the program's device; else as arrays, which a GPU
    computes if there is one and bits do not count. `turn` counts the inputs."""
    if device:
        import torch

        from .on_device import reference_tensors

        with suppress(torch.OutOfMemoryError):
            return reference_tensors(graph, rng, device, poll, weights, turn)
        if weights is not None:
            weights.clear()
        torch.cuda.empty_cache()  # the host has more memory, and takes more time
    inputs = drawing.inputs(graph, rng, turn)
    if bitwise and turn == 2:
        inputs = drawing.special_floats(inputs, rng)
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


def compare_output(
    name: str, dtype: str, y: Any, exact: Any, own: Any, tolerance: Tolerance, slack: float = 1.0
) -> OutputError:
    """How far an output is off, where its reference is: among tensors on a device, or among arrays. `slack`: times what is
    allowed."""
    unequal: Any = _unequal
    if is_torch(exact):
        from . import on_device

        unequal = on_device.unequal
    y = _near(y, exact)
    if y.shape != exact.shape:
        shapes = Worst(where=f"its shape is {tuple(y.shape)}, not {tuple(exact.shape)}")
        return OutputError(name, math.inf, 0.0, 0.0, False, discrete=not dtypes.is_float(dtype), worst=shapes)
    if not dtypes.is_float(dtype):
        place = compare.differing(y, own, None if tolerance == "exact" else exact)
        return OutputError(name, place.ratio, 0.0, 0.0, discrete=True, worst=place)
    if tolerance == "exact":
        share = unequal(y, own)
        if not share:
            return OutputError(name, share, 0.0, 0.0, discrete=True)
        off, original, finite = _errors(y, exact, own)
        return OutputError(name, share, original, 0.0, finite, discrete=True, off=off)
    found = _measured(y, exact, own)
    plan, original = found.errors
    allowed = slack * allowed_error(tolerance, original, dtype)
    return OutputError(name, plan, original, allowed, found.finite, worst=found.worst(dtype, allowed))


def _measured(y: Any, exact: Any, own: Any) -> compare.Measured:
    """How far a result is off; on the host where the device has no room for that."""
    if is_torch(exact):
        import torch

        with suppress(torch.OutOfMemoryError):
            return compare.Measured(y, exact, own)
        y, exact, own = y.cpu(), exact.cpu(), own.cpu()
    return compare.Measured(y, exact, own)


def _unequal(y: Array, own: Array) -> float:
    """Share of the places where bits differ, one NaN being as good as another; 1 for another shape."""
    if y.shape != own.shape:
        return 1.0
    if not dtypes.is_float(dtypes.name_of(own.dtype)):
        return float(np.mean(y != own)) if own.size else 0.0
    same = ((y == own) & (np.signbit(y) == np.signbit(own))) | (np.isnan(y) & np.isnan(own))
    return float(np.mean(~same)) if own.size else 0.0


def _errors(y: Any, exact: Any, own: Any) -> tuple[float, float, bool]:
    """Relative errors of two runs, and whether the first has NaN and infinities only where another run has them."""
    found = _measured(y, exact, own)
    return (*found.errors, found.finite)


__all__ = ["FACTORS", "KEPT_BYTES", "MISCOMPILE", "WRONG", "OutputError", "Tolerance", "Verification", "allowed_error", "expected_seconds",
           "first_reference", "index_bounds", "misplaced", "random_indices", "relative_error", "sample_inputs", "sampled_near",
           "spare", "verify"]  # fmt: skip
