"""Ensures for tolerance "exact" that what runs is bitwise equal to the caller's own function or module.

Kernels are verified bit by bit against the graph as NumPy computes it. The function may compute other bits than its
graph: PyTorch's exp, NumPy's cosh (in the graph a sum of exponentials), the sign of a zero result. Both are therefore
called here with the same inputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...backends.program.program import Program
from ...backends.runtime.marshalling import array_of, is_torch
from ...backends.verification import inputs as drawing
from ...backends.verification.compare import equal_bits
from ...egraph.ir.graph import Graph
from ...egraph.types.dims import concrete
from ...errors import NoPlanError
from ...report.omissions import Omission, OmittedWork
from ...report.report import CALLER, Report
from ..context.session import Session
from ..execution.run_program import run_flat
from ..sources.caller import Caller, CallerProgram
from ..stages.prepare import Task
from .choose_form import why_not_replaceable

Values = Mapping[str, Any]
PLACES, MOST = 2048, 128  # elements of inputs with special floats, if that takes at most so many calls
LEAST_S = 0.5  # seconds that the comparison may take even if the budget is used up; two inputs in any case


def bitwise_form(session: Session, task: Task, program: Program, report: Report) -> Program:
    """Compare the program's results with those of the caller's function on the same inputs; returns the program if they
    have equal bits, else a CallerProgram.

    Raises NoPlanError if they differ and the function may not run (`allow_caller=False`, limits of memory, another
    device).
    """
    caller, graph, options = session.caller, task.model.graph, session.options
    if not (options.exact and options.verify) or caller is None or graph.updates or program.manifest.states:
        return program
    with session.stage("compare"):
        difference = _difference(session, program, caller, graph, report)
    if not difference:
        return program
    why = (
        "allow_caller=False" if not options.allow_caller
        else "limits of memory or rounding are set" if options.limited
        else why_not_replaceable(program, caller, graph, {})
    )  # fmt: skip
    if why:
        raise NoPlanError(
            f"no plan gives the bits of the function: {difference}", where=f"the function itself does not run: {why}",
            hint='relax the tolerance, for example to "eager"',
        )  # fmt: skip
    report.runs = CALLER
    report.compared = f"the caller's own function runs, because the program has other bits: {difference}"
    return CallerProgram.around(program, caller, report.compared)


def _difference(session: Session, program: Program, caller: Caller, graph: Graph, report: Report) -> str:
    """The first difference between a program and the function on some inputs, as text; "" for none."""
    names, until = [str(n.attr("name")) for n in graph.inputs], time.perf_counter() + LEAST_S
    for number, values in enumerate(_cases(graph, caller, names, session.options.seed)):
        if number > 1 and session.over and time.perf_counter() > until:
            report.omitted.append(str(Omission(OmittedWork.EXACT_INPUTS)))
            break
        try:
            with np.errstate(all="ignore"):
                wanted = caller.run_arrays(names, {n: np.array(v) for n, v in values.items()})
        except Exception:  # any error of the function, for inputs other than the examples
            continue
        found = run_flat(program, {n: np.array(v) for n, v in values.items()})
        for name, y, own in zip(graph.names, found, wanted, strict=True):
            if text := _first(np.asarray(y), np.asarray(own)):
                return f"output {name!r} {text}"
    return ""


def _cases(graph: Graph, caller: Caller, names: list[str], seed: int) -> Iterator[Values]:
    """Inputs by name: the examples, then drawn ones with special floats, then random ones. Small inputs are drawn more
    often, so that all of the special floats occur."""
    yield dict(zip(names, [array_of(x) if is_torch(x) else x for x in caller.inputs], strict=True))
    size = max((math.prod(concrete(n.shape)) for n in graph.inputs), default=1)
    for turn in [2] * max(1, min(PLACES // max(size, 1), MOST)) + [1, 0]:
        draw = np.random.default_rng((seed, turn))
        values = drawing.inputs(graph, draw, turn)
        seed += turn == 2
        yield drawing.special_floats(values, draw) if turn == 2 else values


def _first(found: np.ndarray[Any, Any], own: np.ndarray[Any, Any]) -> str:
    """Text of the first bitwise difference, all NaN being equal; "" for none."""
    if found.shape != own.shape or found.dtype != own.dtype:
        return f"is {found.dtype}{list(found.shape)}, not {own.dtype}{list(own.shape)}"
    off = ~equal_bits(found, own, own.dtype.kind not in "iub")
    if not off.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(off)[0])
    return f"is {found[place]!s} at {list(place)}, the function's {own[place]!s}"


__all__ = ["bitwise_form"]
