"""Driver of the optimization: connects all stages, from a source (expression, function, module, file) to a verified
program.

load → simplify → widen → split into blocks → saturate → glue blocks → match candidates → price ⇄ measure → plan →
program → verify
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

from .. import settings
from ..backends.program.program import Program
from ..backends.registry import backend, describe, eager, elsewhere, on_gpu, select, storing_narrow
from ..backends.runtime.views import view_strides
from ..backends.tuning.gpu_lock import Turns
from ..backends.tuning.measure_cpu import CpuMeasurer
from ..backends.tuning.measure_gpu import GpuMeasurer
from ..backends.tuning.unfused import direct_plan
from ..costdb.keys.device import GPU_KIND, gpu_facts, gpu_machine
from ..costdb.store.store import Store
from ..egraph.ir.blocks import Blocks, find_blocks
from ..egraph.ir.graph import Graph
from ..egraph.ir.interpret import expand_all
from ..egraph.ir.ops import OPS
from ..egraph.ir.pattern import Call as Application
from ..egraph.ir.rule import Rule
from ..egraph.saturate.saturate import Limits
from ..egraph.saturate.union import saturate_in_stages
from ..egraph.saturate.worker import default_pool
from ..egraph.simplify.empty import without_empty
from ..egraph.simplify.masks import canonical_masks
from ..egraph.simplify.simplify import simplify
from ..egraph.simplify.widen import widen
from ..egraph.view.view import EGraphView, glue, view_of
from ..errors import DeviceUnavailableError, NoPlanError, ShapeError, UsageError, WorkerError
from ..extract.candidates.candidates import Hypergraph, candidates
from ..extract.model.clock import Clock, Halted
from ..extract.model.gc_pause import frozen
from ..extract.model.kernel import Backend, Call, Measurer, Template
from ..extract.model.storage_dtypes import narrow_types
from ..extract.model.work import graph_flops
from ..extract.search.preload import SOLVERS, STORE, load_ahead
from ..extract.search.search import Choice, measure_ahead, search
from ..extract.solve import budgets
from ..progress import Progress
from ..report.report import AS_WRITTEN, BlockReport, Report, kernel_rows
from ..rules import ALL
from ..verification.comparison import Tolerance, Verification, spare
from ..verification.memory_checks import memory_errors_named, refuse_too_large, refuse_too_large_for_gpu
from ..verification.reference import Reference, expected_seconds, first_reference, sampled_near
from ..verification.verify import verify
from . import trace_check as caller_reference
from .any_size import Symbolic, why_fixed
from .caller import Caller
from .caller_or_program import faster_of_both
from .overlapped_tuning import Meanwhile
from .plan_cache import Memory, Remembered, Stale, content_digest, key_of_search, listing, refuse_dearer, text_digest
from .prices import CostPricer
from .provenance import attach
from .session import Options, Session, beside_ours, kept_warnings, open_store, store_of, store_root
from .source import as_graph, as_tuple, bound, refuse_no_sizes, sizes_of
from .verify_or_retry import Acceptance, renamed, run_flat


# ---------------------------------------------------------------- the stages
@dataclass
class Prepared:
    """A model at concrete sizes in three forms: original, simplified, simplified and widened."""

    graph: Graph  # the original; verification compares with it
    work: Graph  # simplified, with 16-bit floats widened to float32: the form that is optimized
    sizes: dict[str, int]
    narrow: Graph  # simplified only: the form of eager execution on devices with 16-bit kernels

    def written(self, backends: Sequence[Backend]) -> Graph:
        """The graph that the unfused baseline plan runs."""
        return self.narrow if on_gpu(backends) else self.work


def prepare(session: Session, graph: Graph, sizes: Mapping[str, int] | None, *, begin: bool = True) -> Prepared:
    """Bind sizes, simplify, and widen 16-bit floats to float32.

    With tolerance "exact" nothing is widened; composite ops are expanded to atomic ones as in the interpreter. `begin`:
    also start the saturation workers.
    """
    if begin and session.options.limits.iterations:
        default_pool().begin()  # worker processes start in the background
    with session.stage("simplify", f"{len(graph.nodes())} nodes"):
        original, used = bound(graph, sizes)
        exact = session.options.exact
        narrow = work = simplify(without_empty(original), exact=exact)
        work = work.with_roots(expand_all(work.roots)) if exact else simplify(widen(canonical_masks(work)))
    return Prepared(original, work, used, narrow)


SEARCH = 0.5  # minimum fraction of its time share that a search gets, whatever verification is expected to take
REWRITING = 0.5  # fraction of the remaining time that saturation may take
MATCHING = 0.2  # fraction of the budget that must remain when matching ends
MATCHING_LEAST = 0.5  # minimum matching time as a fraction of the minimum measuring time
LEAST, LEAST_S = 0.2, 2.0  # minimum measuring time on a GPU: fraction of the budget, capped in seconds
# fraction of the budget that must remain when kernel generation, and generation for all layouts, ends
GENERATING = 0.5, 0.25
GENERATING_LEAST = 0.1  # minimum generation time as a fraction of the budget, if loading and rewriting took long
SOME_LEFT_OUT = "some of the kernels that could be generated"  # name of the omitted kernels in a report
LARGE_SEARCH = 60  # total nodes of unique blocks from which the exact solvers are loaded in advance


def saturated(session: Session, work: Graph) -> tuple[EGraphView, Blocks, list[EGraphView]]:
    """Saturate each unique block. Return (view of the whole model, its blocks, view per unique block).

    Views of lower effort levels are stored in `session.smaller`.
    """
    options = session.options
    with session.stage("blocks"):
        blocks = find_blocks(work)
    least = 1.0 if options.deterministic else 0.0  # a wall-clock limit makes results irreproducible
    deadline = max(least, session.left * REWRITING)
    with session.stage("saturate", f"{len(blocks.unique)} unique blocks of {len(blocks.instances)}"):
        limits, began = options.limits, session.now()
        large = sum(len(b.graph.nodes()) for b in blocks.unique) > LARGE_SEARCH
        load_ahead([*STORE, *(SOLVERS if large else ())])
        rules = [r for r in options.rules if r.exact or not options.exact]
        *less, views = saturate_in_stages(
            options.effort, [b.graph for b in blocks.unique], rules, limits, exact=options.exact,
            deadline=deadline, stop=lambda: session.progress.stopped,
        )  # fmt: skip
    ended = [v.report.stopped for v in views]
    halted = ended.count("interrupted") + (ended.count("seconds") if session.now() - began >= deadline else 0)
    if halted:
        session.cut.append(f"rewriting of {halted} of {len(views)} blocks")
    died = sorted({v.report.message for v in views if v.report.stopped == "worker-died"})
    session.warnings += [f"rewriting ended early, the saturation worker died: {message}" for message in died]
    with session.stage("glue"):
        session.smaller = [glue(blocks, stage) for stage in less]
        return glue(blocks, views), blocks, views


def hypergraph(
    session: Session, view: EGraphView, backends: Sequence[Backend], stop: Callable[[], bool] = lambda: False,
    enough: Callable[[bool], bool] = lambda bound: False, narrow: bool = True,
) -> Hypergraph:  # fmt: skip
    """All candidate kernels of a view; with tolerance "exact" the bitwise-exact ones, where ops have them.

    Raises Halted when `stop()` is true. When `enough(...)` is true, no further kernels are generated. `narrow`: values
    of a 16-bit model may be stored in its dtype.
    """
    with session.stage("candidates", f"{len(view)} e-nodes"):
        return _matched(session, view, backends, stop, enough, narrow)


def _matched(
    session: Session, view: EGraphView, backends: Sequence[Backend], stop: Callable[[], bool],
    enough: Callable[[bool], bool], narrow: bool = True,
) -> Hypergraph:  # fmt: skip
    limit, own = spare(session.options.tolerance), session.lowerings.opened
    chosen = [_Exact(own(b)) if session.options.exact else _Within(own(b), limit) for b in backends]
    if session.symbolic is not None:
        found = candidates(session.symbolic.view(view), chosen, view_strides, stop=stop, enough=enough)
        return session.symbolic.hypergraph(found)
    narrow = narrow and on_gpu(backends) and not session.options.exact  # exact programs keep the model's dtypes
    return candidates(view, chosen, view_strides, narrow_types(view) if narrow else None, stop, enough)


def hypergraphs(
    session: Session, work: Graph, view: EGraphView, backends: Sequence[Backend], own: Hypergraph | None = None
) -> list[Hypergraph]:
    """Hypergraphs to search, the richest last: those of lower effort levels, the rewritten graph, and the latter with
    16-bit storage.

    As many as time allows. If there is time for none, the hypergraph of the unrewritten graph (`own`, if already made).
    """
    graphs: list[Hypergraph] = []
    pressed, kept = session.interrupted(), MATCHING * session.options.budget
    until = session.now() + (_least(session) if on_gpu(backends) and own is None else 0.0)
    stop = lambda: pressed() or (session.left <= kept and session.now() >= until and not session.options.deterministic)
    enough = _found_enough(session, backends)
    try:
        for v in (*session.smaller, view):
            graphs.append(hypergraph(session, v, backends, stop, enough))
        if (narrow := stored_narrow(session, view, backends, stop)) is not None:
            graphs.append(narrow)
    except Halted:
        session.cut.append("kernels of the rewritten graph" if not graphs else "kernels of all that rewriting found")
    if any(g.stats.get("left_out") for g in graphs):
        session.cut.append(SOME_LEFT_OUT)
    if graphs:
        return graphs
    if own is None:  # library kernels always cover the unrewritten graph
        ended = lambda bound: enough(bound) or (session.over and not _alone(backends))
        own = hypergraph(session, view_of(work), backends, enough=ended)
        if own.stats.get("left_out"):
            session.cut.append(SOME_LEFT_OUT)
    return [own]


def _least(session: Session) -> float:
    """Minimum seconds of matching on a GPU."""
    return MATCHING_LEAST * min(LEAST_S, LEAST * session.options.budget)


def _alone(backends: Sequence[Backend]) -> bool:
    """Whether the backends have generated kernels only (besides views and copies)."""
    return all(t.family in ("view", "copy") for b in backends for t in b.templates)


def _found_enough(session: Session, backends: Sequence[Backend]) -> Callable[[bool], bool]:
    """Predicate that ends kernel generation on a GPU (argument: see `candidates`). Always false without library
    kernels, since there may then be no plan without generated ones.
    """
    began, budget = session.now(), session.options.budget
    timed = on_gpu(backends) and not (_alone(backends) or session.options.deterministic)

    def enough(bound: bool) -> bool:
        if not timed:
            return False
        spent = session.now() - began
        kept = GENERATING[bound or spent < GENERATING_LEAST * budget]
        return session.left <= kept * budget and spent >= _least(session)

    return enough


def meanwhile(
    session: Session, work: Graph, backends: Sequence[Backend], store: Store, measurer: Measurer
) -> Meanwhile:  # fmt: skip
    """Start overlapped tuning of the unrewritten graph: library kernels first, then generated kernels."""
    options, pressed, clock = session.options, session.interrupted(), Clock()
    session.clocks.append(("ahead", clock))
    libraries = [] if _alone(backends) else [b for b in backends if not b.generates]

    def match(chosen: Sequence[Backend]) -> Hypergraph:
        with clock.running("match"):
            return _matched(session, view_of(work), chosen, pressed, _found_enough(session, backends))

    def measure(graph: Hypergraph, enough: Callable[[], bool], begun: Callable[[], None]) -> None:
        stop, said = (lambda: enough() or session.progress.stopped), (lambda message: begun())
        measurer.keeps = True
        try:
            measure_ahead(
                graph, CostPricer(store), measurer, seconds=options.budget, stop=stop, clock=clock, progress=said
            )
        finally:
            measurer.keeps = False

    steps = [libraries, backends] if 0 < len(libraries) < len(backends) else [backends]
    return Meanwhile([partial(match, step) for step in steps], measure)


@dataclass(frozen=True)
class _Within:
    """A backend restricted to kernels whose operand rounding loses at most `limit` (relative)."""

    base: Backend
    limit: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def opened(self, lowerings: Any = None) -> Backend:
        """Itself: the base is opened."""
        return self

    @property
    def templates(self) -> tuple[Template, ...]:
        """See `Backend.templates`."""
        return tuple(t for t in self.base.templates if t.loss <= self.limit)


@dataclass(frozen=True)
class _Exact:
    """A backend restricted to bitwise-exact kernels, plus all kernels of single atomic ops that have no exact kernel.

    Fused and generated kernels are excluded: they keep intermediates in wider dtypes than the graph, or use fused
    multiply-add.
    """

    base: Backend
    generates = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def opened(self, lowerings: Any = None) -> Backend:
        """Itself: the base is opened."""
        return self

    @property
    def templates(self) -> tuple[Template, ...]:
        """See `Backend.templates`."""
        exact = {_op(t) for t in self.base.templates if t.exact and t.family != "view"}
        plain = (t for t in self.base.templates if not t.loss)
        return tuple(t for t in plain if t.exact or not (_op(t) in exact or _composite(t) or _fused(t)))


def _op(template: Template) -> str:
    return getattr(template.term, "op", "")


def _composite(template: Template) -> bool:
    """Whether a kernel's op is composite; its expansion has exact kernels."""
    return _op(template) in OPS and OPS[_op(template)].composite


def _fused(template: Template) -> bool:
    """Whether a kernel computes more than one op."""
    return any(isinstance(a, Application) for a in getattr(template.term, "args", ()))


def stored_narrow(
    session: Session, view: EGraphView, backends: Sequence[Backend], stop: Callable[[], bool] = lambda: False
) -> Hypergraph | None:
    """Candidates of a bfloat16 model with bfloat16 storage, on a CPU with bfloat16 multiplication; None otherwise.

    Whether 16-bit or float32 storage is faster is decided by comparing the two whole plans.
    """
    if session.options.exact or session.symbolic is not None or on_gpu(backends):
        return None
    types = narrow_types(view)
    if all(t.dtype != "bfloat16" for t in types) or not any(b.name == "torch" for b in backends):
        return None
    from ..backends.library.torch import multiplies_bfloat16

    if not multiplies_bfloat16():
        return None
    with session.stage("candidates", "values in bfloat16"):
        own = [session.lowerings.opened(b) for b in backends]
        return candidates(view, storing_narrow(own), view_strides, types, stop)


def _cheapest(
    session: Session, graphs: Sequence[Hypergraph], pricer: CostPricer, measurer: CpuMeasurer | GpuMeasurer | None
) -> tuple[Hypergraph, Choice]:
    """Return the hypergraph with the cheapest plan, and that plan. The search time is divided equally.

    A plan whose search did not measure to the end does not replace one whose search did.
    """
    best: tuple[Hypergraph, Choice] | None = None
    for n, graph in enumerate(graphs):
        try:
            choice = choose(session, graph, pricer, measurer, share=0.8 / (len(graphs) - n))
        except NoPlanError:
            if best is None and n + 1 == len(graphs):
                raise
            continue
        believed = best is None or choice.stopped in ("measured", best[1].stopped)
        if best is None or (believed and choice.cost < best[1].cost):
            best = graph, choice
    assert best is not None
    return best


def choose(
    session: Session, graph: Hypergraph, pricer: CostPricer, measurer: CpuMeasurer | GpuMeasurer | None,
    share: float = 0.8, limits: Sequence[budgets.Budget] = (),
) -> Choice:  # fmt: skip
    """Extract the cheapest kernels within the options' budgets and `limits`, measuring what the best plan lacks.

    Without a measuring process, or if all kernels that cover an output failed in it, prices are predictions; the report
    says so. `share`: fraction of the remaining time.
    """

    def attempt(measurer: CpuMeasurer | GpuMeasurer | None, doubt: bool = False) -> Choice:
        left = max(0.0, session.left)
        seconds = max(SEARCH * share * left, min(share * left, left - session.reserved))
        again = "measure" in session.clock.seconds  # only the first search has a guaranteed minimum time
        if measurer is not None and measurer.ahead and not again:
            seconds = max(seconds, min(LEAST_S, LEAST * session.options.budget))
        clock = Clock()
        session.clocks.append(("search", clock))
        return search(
            graph, pricer, measurer, seconds=seconds, clock=clock, deterministic=session.options.deterministic, doubt=doubt,
            progress=lambda m: session.progress.say("extract", m), stop=lambda: session.progress.stopped,
            budgets=[*_budgets(session.options, pricer), *limits],
        )  # fmt: skip

    with session.stage("extract", f"{len(graph.candidates)} candidate kernels"):
        try:
            choice = attempt(measurer)
        except WorkerError as error:
            session.warnings.append(f"nothing more was measured: {error.message}")
            choice = attempt(None, doubt=True)
        except NoPlanError:
            if measurer is None or pricer.forgiving or limits:
                raise
            session.warnings.append("kernels that failed when measured are in the plan: no others cover the outputs")
            pricer.forgiving = True
            choice = attempt(None, doubt=True)
    spent = choice.seconds.get("measure", 0.0)
    session.clock.add("extract", -spent)
    session.clock.add("measure", spent)
    return choice


def _budgets(options: Options, pricer: CostPricer) -> list[budgets.Budget]:
    """Resource limits on the sum over a plan's kernels."""
    found = [] if options.memory_limit is None else [budgets.memory(options.memory_limit)]
    return found if options.error_budget is None else [*found, budgets.error(options.error_budget, pricer.errors)]


def optimize(
    source: Any,
    example_inputs: Any = None,
    *,
    params: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    fixed: Mapping[str, int] | bool = False,
    dynamic_shapes: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    backend: str | None = None,
    tolerance: Tolerance = "eager",
    budget: float = 60.0,
    limits: Limits | None = None,
    costdb: str | Path | None = None,
    verify: bool = True,
    measure: bool = True,
    deterministic: bool = False,
    seed: int = 0,
    memory_limit: float | None = None,
    error_budget: float | None = None,
    effort: int = 1,
    rules: Sequence[Rule] = (),
    again: bool = False,
    allow_caller: bool = True,
    progress: Progress | None = None,
    trust: bool = False,
) -> Program:
    """Optimize a tensor program: return the fastest verified `Program` found within about `budget` seconds.

        program = tg.optimize(lambda x, w: np.tanh(x @ w), [x, w], budget=30)
        y = program(x, w)
        print(program.report)

    Some work is done regardless of the budget: loading and simplifying the model, one matching and one extraction,
    building the program, verification on one input. `report.cut` lists what was omitted for lack of time.

    `source`: an expression (or a sequence or dict of expressions), a Graph, a Python function or nn.Module with
    `example_inputs`, an ExportedProgram, or a model path.
    `example_inputs`, `example_kwargs`: positional and (nn.Module only) named arguments of the example call; arrays,
    tensors or types.
    `params`: data of weights and initial states by name.
    `dims`: sizes of free dimensions at which the program is optimized (default: batch 1, sequence 128). The program
    runs at every size that the dimensions allow (on a GPU: at these sizes only).
    `fixed`: free dimensions that get one size only, as a dict, or True for all of them; the program may be faster.
    `dynamic_shapes`: as in torch.export, for modules.
    `backend`: "auto" (default of the setting), "numpy", "torch", "c", "gpu", "cuda", "triton", "triton-only" or
    "generated".
    `tolerance`: "eager" (error at most 1.25 times that of the unoptimized graph), "fast" (2 times), "exact" (bitwise
    equal), or a relative error. From 1e-3 on, float32 products may use TF32 on a GPU.
    `limits`: saturation limits per block (`tg.Limits`). `effort`: 0 disables rewriting, 1 rewrites within `limits`,
    each further level adds a run with doubled limits and keeps what lower levels found.
    `rules`: rewrite rules in addition to the built-in ones; each is first tested on random instances.
    `costdb`: folder of the cost store. `measure=False`: use stored and predicted prices only.
    `deterministic=True`: the same plan for the same cost store; implies that nothing is measured.
    `verify=False`: skip verification. `seed`: random seed of the verification inputs.
    `memory_limit`: maximum bytes of all kernel outputs and scratch memory together, an upper bound of the peak beside
    weights, inputs and states. `error_budget`: maximum sum of the kernels' measured relative errors (unmeasured: 0).
    NoPlanError if no plan satisfies them.
    `again=True`: search again. By default the cached plan of an earlier equal search on this machine is reused if no
    price has become worse (pipeline/plan_cache.py).
    `allow_caller=False`: always run the compiled plan. By default, on the CPU, the program is timed against the unfused
    graph and against calls of `source` on the examples; a rival that is faster by more than noise is run instead, as
    `report.runs` and `report.compared` say.
    `trust=True`: allow model formats that can run code while loading (.pt2).

    Raises the classes of `tensor_graphs.errors`: UsageError, BadModelError, UnsupportedError, NoPlanError, …;
    VerificationError only for a miscompile.
    """
    options = Options(
        backend or settings.current().backend,
        tolerance,
        budget,
        limits or Limits(),
        costdb,
        verify,
        measure,
        deterministic,
        seed,
        memory_limit=memory_limit,
        error_budget=error_budget,
        effort=effort,
        rules=beside_ours(rules),
        again=again,
        allow_caller=allow_caller,
    )
    session = Session(options, progress or Progress())
    with session.running(), measuring_begun(session):
        return _optimized(session, source, example_inputs, params, dims, fixed, dynamic_shapes, example_kwargs, trust)


def _optimized(
    session: Session, source: Any, example_inputs: Any, params: Mapping[str, Any] | None, dims: Mapping[str, int] | None,
    fixed: Mapping[str, int] | bool, dynamic_shapes: Any, example_kwargs: Mapping[str, Any] | None, trust: bool,
) -> Program:  # fmt: skip
    """Body of `optimize`: load the source, compare it with the caller's function, optimize the graph."""
    with session.stage("load", str(source) if isinstance(source, str | Path) else ""), kept_warnings(session):
        given = fixed if isinstance(fixed, Mapping) else {}
        refuse_no_sizes(given)
        if both := sorted(set(given) & set(dims or {})):
            raise UsageError(
                f"the sizes of {both} are given twice", hint="in dims a dimension stays free, in fixed it has this size"
            )
        graph = as_graph(
            source, example_inputs, params=params, dims=given, dynamic_shapes=dynamic_shapes, example_kwargs=example_kwargs,
            trust=trust, budget=session.options.budget,
        )  # fmt: skip
        session.caller = Caller.of(source, as_tuple(example_inputs), example_kwargs or {})
        graph = graph.bind({n: s for n, s in given.items() if n in graph.free_dims})
        sizes = {**given, **sizes_of(graph, dims)}
        if fixed is True:
            graph, sizes = bound(graph, sizes)
    session.loaded()
    said = ""
    if session.options.verify and not params:
        with session.stage("compare with the caller's function"):
            said = caller_reference.compare(
                source, example_inputs, graph, sizes=sizes, kwargs=example_kwargs, seed=session.options.seed
            )
    program = optimize_graph(session, graph, sizes)
    if said and program.report is not None and program.report.verification:
        program.report.verification["caller"] = said
    return program


def optimize_graph(session: Session, graph: Graph, dims: Mapping[str, int] | None = None) -> Program:
    """Optimize a loaded graph within a session."""
    options = session.options
    backends = backends_of(options)
    if missing := sorted({str(n.attr("name")) for n in graph.leaves("param")} - set(graph.params)):
        raise UsageError(f"params {missing} have no data", hint="bind them: params={name: array}")
    with kept_warnings(session):
        memory = memory_of(options, graph, dims, backends)
    before = list(session.warnings)
    held = _held(session, memory)
    prepared = prepare(session, graph, dims, begin=held is None)
    (refuse_too_large_for_gpu if on_gpu(backends) else refuse_too_large)(prepared.graph)
    with memory_errors_named(prepared.graph):
        if memory is not None and held is not None:
            try:
                return _recalled(session, graph, prepared, backends, memory, held)
            except Stale as reason:
                session.warnings = before
                session.refused(reason)
        if (
            options.backend == "auto"
            and not (options.exact or on_gpu(backends))
            and (why := backend("c").unavailable())
        ):
            session.warnings.append(f"no kernels in C: {why}")
        program = _searched(session, graph, prepared, backends)
        report = program.report
        if memory is not None and not session.progress.stopped and program.plan is not None:
            verified = content_digest(graph.params) if program.report.verification else ""
            root, kept = store_root(options), session.kept
            why = memory.write(
                program.plan, program.report, program.source, options.budget, verified, root, as_written=kept,
                lift=session.symbolic.lift if session.symbolic else None,
            )  # fmt: skip
            if why:
                session.memory.append(f"this plan is not kept: {why}")
        report.memory = session.memory
        found = faster_of_both(session, prepared.graph, program, backends, report)
        report.seconds, report.timeline = session.clock.seconds, session.timeline
        return found


def backends_of(options: Options) -> list[Backend]:
    """Backends that provide kernels; NumPy for "exact" with backend "auto".

    Raises DeviceUnavailableError if measuring or verifying needs a GPU that is not in this machine (setting `gpu`).
    """
    if elsewhere(options.backend) and (options.measure or options.verify):
        raise DeviceUnavailableError(
            f"plans for {gpu_machine().device} can be made here, and neither measured nor verified", where="TENSOR_GRAPHS_GPU",
            hint="measure=False, verify=False (--no-measure --no-verify), of what `measure` found there",
        )  # fmt: skip
    return list(select("numpy" if options.exact and options.backend == "auto" else options.backend))


@contextmanager
def measuring_begun(session: Session) -> Iterator[None]:
    """Context that starts the GPU measuring processes before the model is loaded: both take seconds."""
    options = session.options
    with session.clock.running("start"):
        backends = backends_of(options)
        if on_gpu(backends):
            store = store_of(session)
            measurer = measurer_of(options, backends, store)
            session.begun = None if measurer is None else (store, measurer)
    try:
        yield
    finally:
        if session.begun is not None:  # unused: the plan came from the cache, or the search did not start
            session.begun[1].close()


def _searched(session: Session, graph: Graph, prepared: Prepared, backends: Sequence[Backend]) -> Program:
    """Search for a size-polymorphic program if possible, else for one at fixed sizes."""
    session.symbolic = for_every_size(session, graph, prepared, backends)
    if session.symbolic is None:
        return _found(session, prepared, backends)
    try:
        return _found(session, prepared, backends)
    except (NoPlanError, ShapeError) as error:
        session.warnings += [*session.symbolic.notes(), f"the program runs at one size only: {error.message}"]
        session.symbolic = None
        return _found(session, prepared, backends)


def memory_of(
    options: Options, graph: Graph, dims: Mapping[str, int] | None, backends: Sequence[Backend]
) -> Memory | None:  # fmt: skip
    """Plan cache entry of this search; None for searches without measuring, whose result depends on the store's current
    content.
    """
    if not options.measure or options.deterministic:
        return None
    chosen = {
        f.name: getattr(options, f.name)
        for f in fields(options)
        if f.name not in ("budget", "again", "verify", "allow_caller")
    }
    chosen["costdb"] = store_root(options).resolve()
    return Memory.of(key_of_search(graph, sorted((dims or {}).items()), backends, chosen))


def _held(session: Session, memory: Memory | None) -> Mapping[str, Any] | None:
    """Cached data of an earlier equal search; None if there are none or they must not be used."""
    if memory is None or session.options.again:
        return None
    try:
        return memory.load(session.options.budget)
    except Stale as reason:
        session.refused(reason)
        return None


def _recalled(
    session: Session, graph: Graph, prepared: Prepared, backends: Sequence[Backend], memory: Memory, held: Mapping[str, Any]
) -> Program:  # fmt: skip
    """The program of a cached plan, verified for these weights. Stale if it is no longer valid.

    Also does what the earlier search had no time for: verification on all inputs, end-to-end timing.
    """
    options = session.options
    found, program, symbolic = _rebuilt(session, graph, prepared, backends, held)
    report, verified = found.report, found.verified if options.verify else ""
    content = content_digest(graph.params) if options.verify else ""
    partly = [c for c in report.cut if c.startswith("verification")]
    if options.verify and (content != verified or (partly and not session.over)):
        report.cut, verified = [c for c in report.cut if c not in partly], ""
        try:
            verdict = _verified_again(session, prepared, program, symbolic)
        except Halted:
            report.cut.append("verification")
        else:
            if verdict is None:
                raise Stale(
                    "it is not accurate enough "
                    + ("for these weights" if content != found.verified else "on more inputs")
                )
            report.verification, verified = verdict.to_json(), content
            report.cut += [verdict.cut] if verdict.cut else []
        program.reset()
    if UNTIMED in report.cut and not session.over:
        report.cut.remove(UNTIMED)
        _time_whole(session, prepared, program, backends, report)
        program.reset()
    if verified and (verified, report.cut) != (held["verified"], held["report"]["cut"]):
        root, kept = store_root(options), found.as_written
        lift = symbolic.lift if symbolic else None
        memory.write(
            found.plan, report, program.source, float(held["budget"]), verified, root, as_written=kept, lift=lift
        )
    if not verified:
        report.verification = None
    report.measured_now, report.remembered = 0, True
    report.seconds, report.timeline = session.clock.seconds, session.timeline
    report.warnings += [w for w in session.warnings if w not in report.warnings]
    program.report = report
    searched = prepared.written(backends) if found.as_written else prepared.work
    _attached(program, searched, symbolic)
    return faster_of_both(session, prepared.graph, program, backends, report)


def _rebuilt(
    session: Session, graph: Graph, prepared: Prepared, backends: Sequence[Backend], held: Mapping[str, Any]
) -> tuple[Remembered, Program, Symbolic | None]:
    """Rebuild a cached plan and its program. Stale if kernels, prices or the emitted text have changed."""
    options = session.options
    with session.stage("recall"):
        symbolic = for_every_size(session, graph, prepared, backends) if held["plan"].get("sizes") else None
        searched = prepared.written(backends) if held.get("as_written") else prepared.work
        whole = renamed(prepared.graph, searched) if symbolic is None else symbolic.graph
        found = Remembered.of(dict(held), whole, symbolic.lift if symbolic else None)
        if bool(found.plan.sizes) != (symbolic is not None):
            raise Stale("it is one for other sizes")
        # an as-written result was timed as a whole, so prices do not matter
        if not found.as_written and found.store != listing(store_root(options)):
            with open_store(session) as store:
                refuse_dearer(found.plan, store)
        program = Program(found.plan)
        if text_digest(program.source) != found.source:
            raise Stale("its program reads otherwise than the one that was verified")
        return found, program, symbolic


def _verified_again(
    session: Session, prepared: Prepared, program: Program, symbolic: Symbolic | None
) -> Verification | None:  # fmt: skip
    """Verdict on a cached program for the current weights; None if it fails. Raises Halted after Ctrl-C."""
    options, over, poll = session.options, lambda: session.over, session.polled()
    with session.stage("verify"):
        verdict = verify(
            prepared.graph, partial(run_flat, program), tolerance=options.tolerance, seed=options.seed,
            flops=graph_flops(list(prepared.work.roots)), device=program.tensors, enough=over, poll=poll,
        )  # fmt: skip
        wrong = not verdict.passed or (
            symbolic and symbolic.wrong(program, options.tolerance, options.seed, over, poll)
        )
    return None if wrong else verdict


def _attached(program: Program, graph: Graph, symbolic: Symbolic | None) -> None:
    """Attach the provenance to a program; for free sizes, at the generic sizes of the rewriting."""
    if symbolic is not None:
        attach(program, symbolic.work, symbolic.generic)
    else:
        attach(program, graph)


def for_every_size(session: Session, graph: Graph, prepared: Prepared, backends: Sequence[Backend]) -> Symbolic | None:
    """Set up a size-polymorphic search; None if the graph has no free dimensions, or if it is impossible (the report
    says why).
    """
    if not graph.free_dims:
        return None
    fixed = dict.fromkeys("a GPU" if b.device.on_gpu else b.device.name for b in backends if not b.device.any_size)
    why = f"programs on {', '.join(fixed)} do" if fixed else why_fixed(graph)
    if not why:
        try:
            with session.stage("simplify"):
                return Symbolic.of(graph, prepared.sizes, exact=session.options.exact)
        except ShapeError as error:
            why = error.message
    session.warnings.append(f"the program runs at one size only: {why}")
    return None


def _found(session: Session, prepared: Prepared, backends: Sequence[Backend]) -> Program:
    """Search, build, verify and time a program for a prepared graph."""
    options, symbolic = session.options, session.symbolic
    work = prepared.work if symbolic is None else symbolic.work
    begun, session.begun = session.begun, None
    ahead = _referring(session, prepared, work, backends)
    store = begun[0] if begun else store_of(session)
    measurer = begun[1] if begun else measurer_of(options, backends, store)
    early: Meanwhile | None = None
    if measurer is not None and measurer.ahead:
        session.lowerings.pool.begin()  # worker start-up takes as long as rewriting
        early = meanwhile(session, work, backends, store, measurer)
    try:
        view, blocks, views = saturated(session, work)
        if early is not None:
            with session.stage("candidates"):
                early.matched()
        graphs = hypergraphs(session, work, view, backends, early.graph if early is not None else None)
        session.lowerings.close()  # frees the worker processes' memory
        if options.verify:
            session.reserved = expected_seconds(prepared.graph, graph_flops(list(work.roots)), on_gpu(backends))
        if early is not None:
            with session.stage("ahead"):
                early.end()
            session.warnings += [f"measuring while the graph was rewritten ended early: {f}" for f in early.faults]
        with open_store(session, store), frozen() if on_gpu(backends) else nullcontext():
            pricer, found, first = CostPricer(store), graphs[-1], None
            if len(graphs) > 1:
                found, first = _cheapest(session, graphs, pricer, measurer)
            graphs.clear()  # frees the memory of the rejected hypergraphs
            acceptance = _acceptance(session, prepared, work, backends, pricer, measurer, first, _fired(session, views))
            acceptance.ahead = ahead
            checked: Verification | None = None
            if options.verify:
                choice, program, checked = acceptance.run(found)
            else:
                choice, program = acceptance.build(found)
            report = make_report(session, prepared, view, blocks, views, choice, backends, store)
    finally:
        if early is not None:
            early.end()
        session.lowerings.close()
        if measurer is not None:
            measurer.close()
    report.verification = checked.to_json() if checked else None
    report.warnings += session.warnings
    if symbolic is not None:
        report.sizes, report.warnings = symbolic.spelled(), [*report.warnings, *symbolic.notes()]
    if choice.stopped == "budget":
        session.cut.append("measuring")
    unoptimized = _time_whole(session, prepared, program, backends, report)
    if unoptimized is not None and symbolic is None and _stays(session, prepared, unoptimized, report):
        program, session.kept = unoptimized, True
    report.seconds, report.cut = session.clock.seconds, list(dict.fromkeys(session.cut))
    if measurer is not None and measurer.ahead:
        report.measuring = {"rounds": choice.rounds, **measurer.spent}
        session.clocks += [("readers", session.lowerings.pool.clock), *measurer.clocks]
    report.timeline = session.timeline
    program.report = report
    _attached(program, prepared.written(backends) if session.kept else prepared.work, symbolic)
    program.reset()  # verification and timing have changed the states
    return program


LIGHT_S = 1.0  # maximum expected seconds of a reference that is computed in parallel with rewriting


def _referring(
    session: Session, prepared: Prepared, work: Graph, backends: Sequence[Backend]
) -> Callable[[], dict[int, Reference]]:  # fmt: skip
    """Compute the first verification reference on the GPU in the background during rewriting, if it is cheap.

    Returns a function that waits for the result; {} if there is none (verification then reports the error). Shares the
    GPU lock with kernel timing.
    """
    options, flops = session.options, graph_flops(list(work.roots))
    light = expected_seconds(prepared.graph, flops, True) < LIGHT_S
    if not on_gpu(backends) or not gpu_facts() or not options.verify or options.exact or not light:
        return dict
    pressed, turns, clock = session.polled(), Turns(), Clock()
    session.clocks.append(("reference", clock))
    found: list[dict[int, Reference]] = []

    def poll() -> None:
        pressed()
        turns()

    def compute() -> None:
        with suppress(Exception), clock.running("compute"), turns:
            found.append(first_reference(prepared.graph, GPU_KIND, seed=options.seed, poll=poll))

    thread = Thread(target=copy_context().run, args=(compute,), name="reference", daemon=True)
    thread.start()

    def result() -> dict[int, Reference]:
        turns.hurried = True
        thread.join()
        return found[0] if found else {}

    return result


def _stays(session: Session, prepared: Prepared, unoptimized: Program, report: Report) -> bool:
    """Whether the unoptimized program, which was faster, is returned. Not if it fails verification, or if memory or
    error limits are set, which it may violate. The report records the decision.
    """
    options = session.options
    if options.memory_limit is not None or options.error_budget is not None:
        return False
    if options.verify:
        try:
            verdict = _verified_again(session, prepared, unoptimized, None)
        except Halted:
            return False
        if verdict is None:
            return False
        report.verification = verdict.to_json()
    assert unoptimized.plan is not None
    own, before, after = Report.of_plan(unoptimized.plan), report.latency_before_us, report.latency_after_us
    report.warnings.append(
        f"the graph runs as it is written: that took {before:.1f} µs, what was found in the time {after:.1f} µs"
    )
    report.kernels, report.kernels_after, report.priced = own.kernels, own.kernels_after, own.priced
    report.cost_us = report.latency_after_us = before or 0.0
    report.lower_bound_us, report.optimal = min(report.lower_bound_us, report.cost_us), False
    report.runs = AS_WRITTEN
    return True


def _acceptance(
    session: Session, prepared: Prepared, work: Graph, backends: Sequence[Backend], pricer: CostPricer,
    measurer: CpuMeasurer | GpuMeasurer | None, first: Choice | None, fired: list[Rule],
) -> Acceptance:  # fmt: skip
    """Set up the verify-or-retry loop. `first`: the choice already made for its hypergraph, if any."""
    options, symbolic = session.options, session.symbolic
    made = [] if first is None else [first]

    def chosen_of(found: Hypergraph, limits: Sequence[budgets.Budget]) -> Choice:
        known = made.pop() if made and made[0].hypergraph is found else None
        choice = known or choose(session, found, pricer, measurer, limits=limits)
        if measurer is not None:
            measurer.pause()  # frees memory for verification
        if measurer is not None and measurer.ahead:
            with session.stage("build"):
                measurer.compile(_untried(choice))
        return choice

    def stored(view: EGraphView | None) -> Hypergraph:
        late = lambda bound: session.late
        return hypergraph(session, view_of(work) if view is None else view, backends, enough=late, narrow=False)

    acceptance = Acceptance(
        prepared.graph, work, chosen_of, pricer.errors,
        lambda: hypergraph(session, view_of(work), backends), stored, session.stage,
        partial(session.progress.say, "verify"), options.tolerance, options.seed, fired,
        over=lambda: session.over, late=lambda: session.late, polled=session.polled, cut=session.cut,
    )  # fmt: skip
    if symbolic is not None:
        acceptance.plan = symbolic.plan
        acceptance.elsewhere = lambda program, poll: symbolic.wrong(
            program, options.tolerance, options.seed, lambda: session.over, poll
        )
    return acceptance


def _untried(choice: Choice) -> Iterator[tuple[Template, Call]]:
    """Generated kernels of a choice that were never measured, with the schedules of the plan, to be compiled in
    advance.
    """
    for i in choice.chosen:
        candidate, price = choice.hypergraph.candidates[i], choice.prices[i]
        if candidate.template.space is not None and price.source != "measured":
            yield candidate.template, replace(candidate.call, schedule=dict(price.schedule))


def measurer_of(options: Options, backends: Sequence[Backend], store: Store) -> CpuMeasurer | GpuMeasurer | None:
    """The kernel measurer of the backends, with its processes starting; None if nothing is to be measured."""
    if not options.measure or options.deterministic:
        return None
    where = {backend(b.name).measured for b in backends}
    if "gpu" not in where:
        return CpuMeasurer(store) if "host" in where else None
    measurer = GpuMeasurer(store)
    with suppress(WorkerError):  # the error is raised again by the first measurement
        measurer.start()  # takes as long as rewriting
    return measurer


def _fired(session: Session, views: Sequence[EGraphView]) -> list[Rule]:
    """Rules that matched in any block."""
    matched = {name for v in views for name, count in v.report.matches.items() if count}
    return [r for r in session.options.rules if {r.name, *(d.name for d in r.directions)} & matched]


# ---------------------------------------------------------------- the report
def make_report(
    session: Session, prepared: Prepared, view: EGraphView, blocks: Blocks, views: Sequence[EGraphView],
    choice: Choice, backends: Sequence[Backend], store: Store,
) -> Report:  # fmt: skip
    """The report of a search, without end-to-end times and verdict."""
    uses = Counter(i.block for i in blocks.instances)
    found = [
        BlockReport(
            uses[k], len(b.graph.nodes()), len(v), v.n_classes, v.report.stopped, v.report.iterations, v.report.seconds
        )
        for k, (b, v) in enumerate(zip(blocks.unique, views))
    ]
    rules: dict[str, tuple[int, float]] = {}
    for v in views:
        for name, matches in v.report.matches.items():
            old = rules.get(name, (0, 0.0))
            rules[name] = (old[0] + matches, old[1] + v.report.rule_seconds.get(name, 0.0))
    reasons: dict[str, int] = {}
    for b in found:
        reasons[b.stopped] = reasons.get(b.stopped, 0) + 1
    return Report(
        prepared.graph.name, describe(backends), prepared.sizes, len(prepared.graph.nodes()), len(view), view.n_classes,
        found, ", ".join(f"{n} blocks stopped at: {r}" for r, n in reasons.items()), rules, len(choice.hypergraph.candidates),
        kernels=kernel_rows((choice.hypergraph.candidates[i].template, choice.prices[i]) for i in choice.chosen),
        kernels_after=sum(choice.sources.values()), cost_us=choice.cost,
        lower_bound_us=min(choice.extraction.lower_bound, choice.cost), optimal=choice.extraction.optimal,
        method=choice.extraction.method, priced=choice.sources, measured_now=choice.measured,
        optimism_us=choice.optimism_us, search_stopped=choice.stopped, snapshot=store.snapshot_id(),
        searched=_searched_with(session.options, found),
    )  # fmt: skip


def _searched_with(options: Options, blocks: Sequence[BlockReport]) -> dict[str, Any]:
    """Options needed to repeat the rewriting of the blocks."""
    return {
        "limits": asdict(options.limits), "effort": options.effort, "exact": options.exact,
        "rounds": max([b.iterations for b in blocks], default=0), "rules": [asdict(r) for r in options.rules[len(ALL) :]],
    }  # fmt: skip


SLOWER, NEGLIGIBLE_US = 2.0, 100.0  # factor and additive µs over the estimate from which the report warns
CALL_US = 300.0  # overhead in µs of a call from Python on a GPU: copy inputs, launch a graph, copy outputs
UNTIMED = "timing of the whole program"  # name of the omitted stage in a report
LOOK_S, NOISE = 0.1, 0.03  # extra seconds of timing if kernels are unmeasured; relative difference treated as noise
LARGE = 1 << 30  # combined bytes of two programs above which only one is bound at a time


def _time_whole(
    session: Session, prepared: Prepared, program: Program, backends: Sequence[Backend], report: Report
) -> Program | None:
    """Measure end-to-end latency of the program and of the unfused baseline, interleaved; return the baseline program
    if it is faster.

    Runs within the remaining budget, or LOOK_S beyond it if kernels of the program were never measured (except CPU
    programs that take longer).
    """
    from .timing import clock_of, is_surely_faster, sampled

    device, graph = on_gpu(backends), prepared.written(backends)
    plan = direct_plan(graph, eager(backends))
    report.kernels_before = plan.kernels
    if not session.options.measure:
        return None
    doubted = not session.progress.stopped and any(n for s, n in report.priced.items() if s != "measured")
    doubted = doubted and (device or report.cost_us < 1e6 * LOOK_S)
    if session.over and not doubted:
        session.cut.append(UNTIMED)
        return None
    pressed = session.interrupted()
    with session.stage("time"):
        before = Program(replace(plan, graph=renamed(prepared.graph, graph)))
        inputs = sampled_near(prepared.graph, np.random.default_rng(session.options.seed), program.tensors)
        values = program.near([inputs[n] for n in program.input_names])
        until = session.now() + LOOK_S if doubted else 0.0
        ended = lambda: pressed() or (session.left <= 0 and session.now() >= until)

        def first() -> None:  # states that advance with each call would run past the end of their cache
            before.reset()
            program.reset()

        timed = partial(sampled, seconds=1.0, settled=0.1, clock=clock_of(program.tensors), ended=ended, first=first)
        calls = {"before": lambda: before.flat(*values), "after": lambda: program.flat(*values)}
        if sum(before.memory().values()) + sum(program.memory().values()) < LARGE:
            samples = timed(calls)
        else:  # sequentially: two copies of the weights would double the peak memory
            program.unbind()
            samples = timed({"before": calls["before"]})
            before.unbind()
            samples |= timed({"after": calls["after"]})
        report.latency_before_us, report.latency_after_us = median(samples["before"]), median(samples["after"])
    besides = CALL_US if device else NEGLIGIBLE_US
    if report.cost_us and report.latency_after_us > SLOWER * report.cost_us + besides:
        ratio = report.latency_after_us / report.cost_us
        report.warnings.append(
            f"the program as a whole takes {ratio:.1f} times the sum of its kernels' prices: a busy machine, or kernels that slow each other down"
        )
    return before if is_surely_faster(samples["before"], samples["after"], NOISE) else None


# ---------------------------------------------------------------- other entry points
