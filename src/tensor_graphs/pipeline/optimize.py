"""Drives the optimization, from a source (expression, function, module, file) to a verified program.

    load -> look up in the plan cache -> prepare -> recall | search -> choose the form that runs

`search` runs the stages rewrite, match, choose, accept and time (search.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ..backends.device import HOST
from ..backends.program.program import Program
from ..backends.registry import backend, on_gpu
from ..bytecode import bytecode_kept
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..errors import UnusableKernelsError, UsageError
from ..extract.model.backend import Backend
from ..extract.model.gc_pause import gc_frozen
from ..models.common.quantized_graph import codes_kept, quantized
from ..options import Options
from ..progress import Progress
from ..public_functions import takes_options
from ..report.report import CALLER
from ..verification.memory_checks import memory_errors_named, refuse_too_large, refuse_too_large_for_gpu
from .background_hashes import hashed_beside
from .context.session import Session
from .costs.measuring import backends_in_time, backends_of, measurer_started, start_measurer
from .forms.choose_form import faster_form
from .forms.exact_form import bitwise_form
from .recall import look_up, recall, store_plan
from .search import search
from .sizes.size_buckets import FIRST, buckets_of, refuse_buckets_without, with_buckets
from .sources.fixed_arguments import fixed_arguments, given_values
from .sources.index_limits import EXPRESSIONS, index_limits, limits_of_weights
from .stages.backend_filter import with_kernels
from .stages.load import Loaded, load
from .stages.prepare import Task, prepare


@takes_options(Options)
def optimize(source: Any, example_inputs: Any, options: Options) -> Program:
    """The fastest verified `Program` of a tensor program that is found within about `budget` seconds.

        program = tg.optimize(lambda x, w: np.tanh(x @ w), [x, w], budget=30)
        y = program(x, w)
        print(program.report)

    Some work is done regardless of the budget: loading and simplifying the model, one matching and one extraction,
    building the program, verification on one input. `report.omitted` lists what was omitted for lack of time.

    `source`: an expression (or a sequence or dict of expressions), a Graph, a Python function or nn.Module with
    `example_inputs`, an ExportedProgram, or a model path. `example_inputs`: positional arguments of the example call;
    arrays, tensors or types. Numbers, strings, bools and None are constants of the program (`report.fixed_arguments`).

    Raises the classes of `tensor_graphs.errors`: UsageError, BadModelError, UnsupportedError, NoPlanError, …;
    VerificationError only for a miscompile.
    """
    session = Session(options, options.progress or Progress())
    # the plan of a graph is looked up at once: if it is in the cache, no process has to start
    # nor does each full garbage collection traverse what is there already, as 300,000 objects of PyTorch
    with (
        bytecode_kept(),
        gc_frozen(),
        session.running(),
        measurer_started(session, early=not isinstance(source, Graph | Tensor)),
    ):
        loaded = load(session, source, example_inputs)
        graph, done = loaded.graph, None
        refuse_buckets_without(options, graph)
        if options.quantize is not None:
            graph, done = quantized(graph, options.quantize)
            session.caller = None  # the caller's function computes with the weights as they were
        with codes_kept(graph.params):
            program = optimize_graph(session, graph, loaded.sizes)
        if done is not None:
            program.report.quantization = str(done)
        if fixed := fixed_arguments(source, example_inputs, options.example_kwargs):
            program.manifest = replace(program.manifest, fixed=fixed)
            program.report.fixed_arguments = given_values(fixed, example_inputs, options.example_kwargs)
        if program.device == HOST.name:
            _check_indices(program, source, loaded)
    if loaded.compared and program.report is not None and program.report.verification:
        program.report.verification["caller"] = loaded.compared
    return program


def _check_indices(program: Program, source: Any, loaded: Loaded) -> None:
    """Let a program check its indices before each call; those that it does not check are named in its report."""
    free = program.manifest.sizes
    only = {
        n: s for n, s in getattr(program.report, "dims", {}).items() if n not in free and n in loaded.graph.free_dims
    }
    graph = loaded.graph.bind(only) if only else loaded.graph
    limits, computed, unchecked = index_limits(source, graph, program.manifest.chosen)
    of_weights = None if isinstance(source, EXPRESSIONS) else limits_of_weights(graph, program.manifest.chosen)
    if limits or computed.targets or of_weights is not None:
        program.checking(limits, computed, of_weights)
    if unchecked and program.report is not None:
        names = ", ".join(map(repr, unchecked))
        program.report.warnings.append(
            f"indices that are computed from {names} are not checked: where the function raises an error for one, the program "
            "takes the element at the end of the axis"
        )


def optimize_graph(session: Session, graph: Graph, sizes: Mapping[str, int] | None = None) -> Program:
    """The fastest verified program of a loaded graph, found within a session; `sizes`: values of its free dimensions.

    Where backend "auto" had taken PyTorch, which turns out not to be importable, the search is made again without it.

    Raises UsageError if weights have no data; TooLargeError or DeviceMemoryError, before any search, if the model
    cannot fit.
    """
    try:
        return _optimized(session, graph, sizes)
    except UnusableKernelsError as error:
        if session.options.backend_name != "auto" or error.backend != "torch":
            raise
        program = _optimized(session, graph, sizes)
        program.report.warnings.append(f"no kernels of PyTorch: {error.message}")
        return program


def _optimized(session: Session, graph: Graph, sizes: Mapping[str, int] | None) -> Program:
    backends = backends_of(session.options)
    _refuse_missing_weights(graph)
    graph = with_kernels(graph, backends)
    rows = buckets_of(session.options, graph, backends)
    session.keeps_measurer = bool(rows)
    with session.part(FIRST * session.left, own=False) if rows else nullcontext():
        task, program = _found(session, graph, sizes, backends)
    report = program.report
    if rows:
        with memory_errors_named(task.model.graph):
            more = lambda own, there: _found(session, own, there, backends)[1]
            program = with_buckets(session, graph, rows, program, backends, more)
    if program.manifest.buckets is None:
        program = faster_form(session, task, program, report)
    if report.runs != CALLER:
        program = bitwise_form(session, task, program, report)
    report.interrupted = session.progress.stopped
    report.seconds, report.timeline = session.stage_clock.seconds, session.timeline
    return program


def _found(
    session: Session, graph: Graph, sizes: Mapping[str, int] | None, backends: Sequence[Backend]
) -> tuple[Task, Program]:  # fmt: skip
    """(task, program) of a graph: the program of its cached plan if that is valid, else of a search."""
    slot = look_up(session, graph, sizes, backends)
    if slot.data is None:
        backends = backends_in_time(session, backends)
        start_measurer(session, backends)
    warnings = list(session.warnings)
    gpu = on_gpu(backends)
    prepared = prepare(session, graph, sizes, begin=slot.data is None, in_place=not gpu, rounds=gpu)
    task = Task(graph, prepared, backends)
    (refuse_too_large_for_gpu if task.on_gpu else refuse_too_large)(task.model.graph)
    with memory_errors_named(task.model.graph):
        program = recall(session, task, slot, warnings)
        if program is None:
            _warn_without_c(session, backends)
            with hashed_beside(session, task, wanted=slot.entry is not None and session.options.verify) as hashes:
                found = search(session, task)
                store_plan(session, slot, found, hashes)
            program = found.program
            program.report.plan_cache_notes = session.plan_cache_notes
    return task, program


def _refuse_missing_weights(graph: Graph) -> None:
    if missing := sorted({str(n.attr("name")) for n in graph.leaves("param")} - set(graph.params)):
        raise UsageError(f"params {missing} have no data", hint="bind them: params={name: array}")


def _warn_without_c(session: Session, backends: Sequence[Backend]) -> None:
    """Warn if backend "auto" has no C kernels because there is no compiler."""
    options = session.options
    if options.backend_name != "auto" or options.exact or on_gpu(backends):
        return
    if why := backend("c").unavailable():
        session.warnings.append(f"no kernels in C: {why}")


__all__ = ["optimize", "optimize_graph"]
