"""Verification: a program's outputs against a float64 run of the original graph, within the requested tolerance.

The error of a float output is the relative Frobenius norm ‖y − r‖ / ‖r‖ against the float64 result r of the original.
The allowed error is relative to the error of the original graph in its own dtypes: 1.25 times that for "eager", 2 times
for "fast", plus two units in the last place of the output dtype. In addition every element and every slice has a limit
of its own (`backends/compare.py`), so that errors in small values are not hidden by large values. NaN and infinities
must be where the reference, or the unoptimized graph in its own dtypes, has them. Integers and booleans must be equal.

Elements may differ only where rounding decides them (near ties, values next to a discontinuity, cancellation).
Additional float64 runs with every value perturbed by the size of its rounding error find these elements
(`backends/disturb.py`); they run only if something differs, and the exempt elements are counted.
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
from .room import in_and_out, refuse_reference

Array = np.ndarray[Any, Any]
Tolerance = str | float
Values = dict[str, Any]  # inputs and states by name: arrays, or tensors on one device

FACTORS = {"eager": 1.25, "fast": 2.0}
MISCOMPILE = 1e3  # a miscompile has more than this multiple of the allowed error
WRONG = 0.02  # and more than this error in absolute terms
FAR = 10.0  # multiple of the allowed norm error above which elements are not reconsidered
ODD = 4.0  # slack for inputs with a few large values, which dominate an output's norm
LARGE_FLOPS = 2e10  # flops above which one seed is used instead of three (noted in the report)
LARGE_BYTES = 1 << 28  # bytes of inputs and outputs, likewise


NOWHERE = Worst()


@dataclass(frozen=True)
class OutputError:
    """Errors of one output, worst over seeds."""

    name: str
    plan: float  # relative Frobenius error of the program against float64
    original: float  # the same of the unoptimized graph in its own dtypes
    allowed: float
    finite: bool = True  # NaN and infinities are only where allowed
    discrete: bool = False  # integers, bools, or bitwise comparison: `plan` is the fraction of unequal elements
    off: float | None = None  # relative error of floats that are compared bitwise
    worst: Worst = NOWHERE  # the element or slice with the largest error relative to its own limit

    @property
    def passed(self) -> bool:
        """Whether the norm, every slice and every element are within tolerance, and NaN and infinities in place."""
        return self.finite and self.excess <= 1

    @property
    def excess(self) -> float:
        """Error divided by the allowed error: of the norm, or of the worst element or slice if larger. Above 1 it
        fails.
        """
        whole = self.plan / self.allowed if self.allowed else (math.inf if self.plan else 0.0)
        return whole if self.discrete else max(whole, self.worst.ratio)

    @property
    def said(self) -> str:
        """Description of the error as text."""
        away = f"is off by {self.plan:.3g}" if self.finite else "has NaN or infinities where they may not be"
        place = f" ({self.worst.said if not self.discrete else self.worst.where})" if self.worst.where else ""
        return f"output {self.name!r} {away}, allowed {self.allowed:.3g}{place}"

    @property
    def miscompiled(self) -> bool:
        """Whether the error is larger than rounding explains."""
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
    """Verdict on one program."""

    outputs: tuple[OutputError, ...]
    seeds: int
    tolerance: Tolerance
    note: str = ""
    attempts: int = 1
    dropped: tuple[str, ...] = field(default_factory=tuple)  # what earlier attempts excluded
    left_out: int = 0  # number of inputs skipped for lack of time
    compared: float = 1.0  # smallest fraction of an output's elements that were compared

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
        """What was skipped for lack of time, as text."""
        if self.compared < 1.0:
            return f"verification of {100 * (1 - self.compared):.3g} % of the outputs' elements"
        return f"verification on {self.left_out} of {self.left_out + self.seeds} inputs" if self.left_out else ""

    @property
    def worst(self) -> OutputError:
        """The output with the largest excess."""
        return max(self.outputs, key=lambda o: (not o.finite, o.excess))

    def of_unoptimized(self) -> Verification:
        """The verdict if the program is the unoptimized graph itself: its own error on this backend becomes the allowed
        error.

        The interpreter's error may be smaller by chance, for example for an output of one element.
        """
        outputs = tuple(
            replace(o, original=max(o.original, o.plan), allowed=max(o.allowed, o.plan),
                    worst=replace(o.worst, ratio=min(o.worst.ratio, 1.0)))
            for o in self.outputs
        )  # fmt: skip
        note = "the unoptimized graph: rewritten ones lost more than the interpreter's rounding allows"
        return replace(self, outputs=outputs, note="; ".join(filter(None, (self.note, note))))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
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
    """Random values for inputs and states: standard normal floats, fair bools, integers below `bounds[name]` (default
    2).

    Integers are distinct along each sufficiently short axis, because the order of two writes to the same index is
    undefined.
    """
    found = {}
    for leaf in leaves:
        shape, name = concrete(leaf.shape), str(leaf.attr("name"))
        kind = dtypes.category(leaf.dtype)
        target = dtypes.numpy_dtype(leaf.dtype)
        if kind == "float":
            draw = lambda s, target=target: np.asarray(rng.standard_normal(s)).astype(target)
            found[name] = drawing.repeated(shape, draw)
        elif kind == "bool":
            found[name] = drawing.repeated(shape, lambda s: np.asarray(rng.random(s) < 0.5))
        else:
            found[name] = random_indices(shape, max(1, (bounds or {}).get(name, 2)), rng).astype(target)
    return found


def sampled_near(graph: Graph, rng: np.random.Generator, device: str = "") -> Values:
    """Random values for a graph's inputs: tensors on a Torch device, or arrays if `device` is "" or its memory is
    insufficient.
    """
    if not device or not _fits(device, sum(t.type.nbytes for t in graph.inputs)):
        return sample_inputs(graph.inputs, rng, index_bounds(graph))
    from .on_device import sample_tensors

    return sample_tensors(graph.inputs, rng, index_bounds(graph), device)


KEPT_BYTES = 1 << 22  # maximum output bytes of a reference that is kept in memory between sizes
PIECE = 1 << 20  # elements compared at a time, to avoid float64 copies of whole outputs


def _pieces(*arrays: Array) -> Iterator[list[Array]]:
    """Corresponding flat slices of equally shaped arrays, in float64."""
    flat = [np.asarray(a).reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, PIECE):
        yield [a[start : start + PIECE].astype(np.float64) for a in flat]


def relative_error(value: Array, reference: Array) -> float:
    """‖value − reference‖ / ‖reference‖ in float64 over the finite elements; ‖value‖ for a reference of zeros."""
    return compare.Measured(np.asarray(value), np.asarray(reference, np.float64), None).errors[0]


def misplaced(value: Array, reference: Array, original: Array) -> bool:
    """Whether NaN, +inf, -inf or a finite number is where neither the reference nor the original run has it."""
    dtype = dtypes.name_of(np.asarray(original).dtype)
    return any(compare.misplaced(np, v, r, o, dtype).any() for v, r, o in _pieces(value, reference, original))


def allowed_error(tolerance: Tolerance, original: float, dtype: str) -> float:
    """Largest relative error that the tolerance allows for an output of `dtype`. `original`: error of the unoptimized
    graph.

    UsageError for an invalid tolerance.
    """
    if isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and tolerance >= 0:
        return float(tolerance)
    if tolerance == "exact":
        return 0.0
    if not isinstance(tolerance, str) or tolerance not in FACTORS:
        raise UsageError(f"tolerance {tolerance!r}", hint='one of "eager", "fast", "exact", or a number')
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}.get(dtype, 2.0**-23)
    return FACTORS[tolerance] * original + 2 * ulp


def spare(tolerance: Tolerance) -> float:
    """Largest relative error from rounding operands to fewer digits at which a kernel is a candidate.

    A numeric tolerance itself; two float32 ulps for "eager" and "fast"; 0 for "exact".
    """
    return allowed_error(tolerance, 0.0, "float32")


Reference = tuple[Values, list[Any], list[Any]]  # (inputs, float64 run, own-dtype run)


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
    """Compare `run` with the graph on random inputs: one if the model is large, else three, or `seeds`.

    `run`: maps inputs and states by name to outputs, then updated states. `flops`: of the graph. `references`: cache of
    (inputs, float64 run, own-dtype run) per seed, shared between attempts. `device`: Torch device of the tensors that
    `run` takes and returns, where everything is computed; "": host arrays. Graphs with more than LARGE_BYTES of inputs
    and outputs are compared in strips if possible (strips.py). `enough()`: polled before each seed but the first; the
    rest is then skipped and counted in `left_out`. `poll()`: called before every operation of a reference run; Halted
    raised by it ends the verification, and propagates if no seed is complete. TooLargeError before a reference on the
    host whose values exceed the available memory (outputs that cannot be cut into strips, or tolerance "exact").
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
                worst[name].append(_reconsidered(judged, k, y, r, o, disturbed, root.dtype, adversarial=seeds > 0))
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
    """Reference of the first input, computed on a device before the program exists, for `references` of `verify`. Empty
    if device memory is insufficient. Raises Halted through `poll`.
    """
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
    """The worst of one output's errors over several inputs, with the exempt elements of all of them."""
    worst = max(found, key=lambda o: (not o.finite, o.excess))
    return replace(worst, worst=replace(worst.worst, exempt=sum(o.worst.exempt for o in found)))


def _reconsidered(
    judged: OutputError, k: int, y: Any, exact: Any, own: Any, disturbed: Disturbed, dtype: str, adversarial: bool
) -> OutputError:
    """An output's error without the elements that rounding decides, if it is over a limit.

    On `adversarial` inputs (large values, ties) the norm is also taken without these elements: a softmax of logits around 1e3 moves
    by 1e-4 when one of them is rounded. On the first input the limit of the norm is unchanged."""
    if judged.passed or judged.off is not None or tuple(y.shape) != tuple(exact.shape):
        return judged
    discrete = not dtypes.is_float(dtype)
    far = max(MISCOMPILE * judged.allowed, WRONG) if adversarial else FAR * judged.allowed
    if not discrete and (not judged.finite or judged.plan > far):
        return judged
    if judged.discrete and not discrete:
        return judged  # bitwise comparison
    y = _near(y, exact)
    while (judged.worst.ratio > 0 if discrete else judged.excess > 1) and disturbed.further():
        if discrete:
            place = compare.differing(y, own, exact, disturbed.moved[k])
            judged = replace(judged, plan=place.ratio, worst=place)
        else:
            found = compare.Measured(y, exact, own, disturbed.moved[k])
            plan = found.errors[0] if adversarial else judged.plan
            judged = replace(judged, plan=plan, worst=found.worst(dtype, judged.allowed))
    return judged


def _near(y: Any, like: Any) -> Any:
    """An output in its reference's form: an array, or a tensor on the reference's device."""
    if is_torch(like):
        from .on_device import near

        return near(y, like)
    return array_of(y) if is_torch(y) else np.asarray(y)


HOST_FLOPS, HOST_BYTES = 2e10, 1e9  # flops and bytes of reference runs per second on the host, roughly
DEVICE_FLOPS, DEVICE_BYTES = 1e13, 1e11  # the same on a GPU


def expected_seconds(graph: Graph, flops: float, on_gpu: bool) -> float:
    """Approximate seconds of verification on one input: two runs, each writing every value once and reading it once or
    twice.
    """
    nbytes = sum(n.type.nbytes for n in graph.nodes() if n.args)
    rates = (DEVICE_FLOPS, DEVICE_BYTES) if on_gpu else (HOST_FLOPS, HOST_BYTES)
    return 2 * flops / rates[0] + 4 * nbytes / rates[1]


def _unsigned(graph: Graph) -> bool:
    """Whether unsigned integers occur that Torch cannot compare."""
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
    """Return (inputs, float64 run, own-dtype run): tensors on `device`, or arrays, computed on a GPU if there is one
    and `bitwise` is false. `turn`: index of the input set.
    """
    if device:
        import torch

        from .on_device import reference_tensors

        with suppress(torch.OutOfMemoryError):
            return reference_tensors(graph, rng, device, poll, weights, turn)
        if weights is not None:
            weights.clear()
        torch.cuda.empty_cache()  # fall back to the host: more memory, but slower
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
    refuse_reference(graph)
    with np.errstate(all="ignore"):
        wide = evaluate(graph, inputs, float64=True, poll=poll)
        exact = [_kept(r, root.dtype) for r, root in zip(wide, graph.roots)]
        del wide
        return inputs, exact, evaluate(graph, inputs, whole=bitwise, poll=poll)


def _kept(exact: Array, dtype: str) -> Array:
    """Keep a float64 result in float32 beside 16-bit outputs, whose ulp is at least 2**13 times that of float32, unless
    an element overflows.
    """
    if dtype not in HALVES:
        return exact
    with np.errstate(over="ignore"):
        kept = exact.astype(np.float32)
    return kept if np.array_equal(np.isfinite(kept), np.isfinite(exact)) else exact


def compare_output(
    name: str, dtype: str, y: Any, exact: Any, own: Any, tolerance: Tolerance, slack: float = 1.0
) -> OutputError:
    """Compare one output with its reference, as device tensors or as arrays. `slack`: factor on the allowed error."""
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
    """Error measurement, on the host if device memory is insufficient."""
    if is_torch(exact):
        import torch

        with suppress(torch.OutOfMemoryError):
            return compare.Measured(y, exact, own)
        y, exact, own = y.cpu(), exact.cpu(), own.cpu()
    return compare.Measured(y, exact, own)


def _unequal(y: Array, own: Array) -> float:
    """Fraction of bitwise unequal elements, all NaNs being equal; 1 for different shapes."""
    if y.shape != own.shape:
        return 1.0
    if not dtypes.is_float(dtypes.name_of(own.dtype)):
        return float(np.mean(y != own)) if own.size else 0.0
    same = ((y == own) & (np.signbit(y) == np.signbit(own))) | (np.isnan(y) & np.isnan(own))
    return float(np.mean(~same)) if own.size else 0.0


def _errors(y: Any, exact: Any, own: Any) -> tuple[float, float, bool]:
    """Return (relative error of `y`, relative error of `own`, whether NaN and infinities are only where allowed)."""
    found = _measured(y, exact, own)
    return (*found.errors, found.finite)


__all__ = ["FACTORS", "KEPT_BYTES", "MISCOMPILE", "WRONG", "OutputError", "Tolerance", "Verification", "allowed_error", "expected_seconds",
           "first_reference", "index_bounds", "misplaced", "random_indices", "relative_error", "sample_inputs", "sampled_near",
           "spare", "verify"]  # fmt: skip
