"""Runs the stages "plan cache", which builds the program from the plan (choice of kernels) that an earlier equal search
stored, and "store plan", which stores the plan of a new search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path

from ..backends.gpu_context import begin_context
from ..backends.program.launch.binaries import Binaries
from ..backends.program.program import Program
from ..egraph.ir.graph import Graph
from ..extract.model.backend import Backend
from ..extract.model.clock import Halted
from ..report.omissions import Omission, OmittedWork
from .cache.cached_kernels import read_kernels, write_kernels
from .cache.facts import fact, keep_fact
from .cache.plan_cache import (
    CachedPlan,
    CacheEntry,
    StalePlan,
    has_new_rows_of,
    key_of_search,
    refuse_higher_prices,
    shard_names_digest,
    text_digest,
)
from .cache.plan_file import Json
from .cache.weights_digest import WeightHashes, hashed_bytes, weights_digest
from .context.session import Session, kept_warnings, open_store, store_root
from .execution.run_program import renamed
from .search import SearchResult, attach_provenance
from .stages.prepare import Task, for_every_size
from .stages.time_program import time_program
from .stages.verify_program import verify_program

LATE_BYTES = 1 << 29  # bytes of weights that are hashed without time left: half a second on two cores
#: Seconds of building programs up to which a plan is parsed back without time left, which takes twice as long.
CHECK_S = 0.1


@dataclass(frozen=True)
class CacheSlot:
    """Place of a search in the plan cache: its entry, and the entry's content if it is to be used.

    `entry` is None for searches without measuring, whose result depends on the cost store's current content.
    """

    entry: CacheEntry | None
    data: Json | None


def look_up(
    session: Session, graph: Graph, sizes: Mapping[str, int] | None, backends: Sequence[Backend]
) -> CacheSlot:  # fmt: skip
    """The plan cache's slot for this search. `sizes`: values given to the graph's free dimensions.

    It has no stored plan with the option `again`, or if a smaller budget cut the search of that plan short.
    """
    options = session.options
    if not options.keeps_plans:
        return CacheSlot(None, None)
    with kept_warnings(session):
        deciding = options.deciding() | {"rules": session.own_rules, "costdb": Path(realpath(store_root(options)))}
        entry = CacheEntry.of(key_of_search(graph, sorted((sizes or {}).items()), backends, deciding))
    if options.again:
        return CacheSlot(entry, None)
    try:
        return CacheSlot(entry, entry.load(options.budget))
    except StalePlan as reason:
        session.refused(reason)
        return CacheSlot(entry, None)


def unchecked(omitted: Sequence[str]) -> list[str]:
    """Those of a report's omitted stages that `recall` completes: verification, timing of the whole program."""
    return [text for text in omitted if (omission := Omission.of(text)) and omission.can_be_completed]


def recall(session: Session, task: Task, slot: CacheSlot, warnings: Sequence[str]) -> Program | None:
    """Program of the cached plan, verified for these weights; None if there is none that is still valid.

    `warnings`: the session's warnings before the model was prepared, which replace later ones if the plan is not used.
    """
    if slot.entry is None or slot.data is None:
        return None
    try:
        return _recalled(session, task, slot.entry, slot.data)
    except StalePlan as reason:
        session.warnings = list(warnings)
        session.refused(reason)
        return None


def _recalled(session: Session, task: Task, entry: CacheEntry, data: Json) -> Program:
    """The program of a cached plan. Raises StalePlan if it is no longer valid.

    Also does what the earlier search had no time for, verification on all inputs and end-to-end timing, unless
    `complete_checks` is False.
    """
    if task.on_gpu:
        begin_context()  # takes as long as rebuilding the plan
    options = session.options
    completing = options.complete_checks and not session.over
    cached, program, task = _rebuilt(session, task, entry, data)
    compiled = _compiled(session, entry, cached)
    program.take_binaries(compiled)
    report, verified = cached.report, cached.verified if options.verify else ""
    content = weights_digest(task.source.params) if options.verify else ""
    partly = [c for c in report.omitted if (omission := Omission.of(c)) and omission.work is OmittedWork.VERIFICATION]
    if options.verify and (content != verified or (partly and completing)):
        report.omitted, verified, known = [c for c in report.omitted if c not in partly], "", len(session.omitted)
        try:
            verdict = verify_program(session, task, program)
        except Halted:
            report.omitted.append(str(Omission(OmittedWork.VERIFICATION)))
        else:
            if verdict is None:
                given = "for these weights" if content != cached.verified else "on more inputs"
                raise StalePlan(f"it is not accurate enough {given}")
            report.verification, verified = verdict.to_json(), content
            report.omitted += map(str, session.omitted[known:])
            del session.omitted[known:]
        program.reset()
    untimed = str(Omission(OmittedWork.TIMING))
    if untimed in report.omitted and completing and not session.over:
        report.omitted.remove(untimed)
        faster = time_program(session, task, program, report)
        if faster is not None and not (cached.as_written or task.symbolic or options.limited):
            raise StalePlan("the graph as it is written is faster")
        program.reset()
    if verified and (verified, report.omitted) != (data["verified"], data["report"]["omitted"]):
        why = entry.write(
            cached.plan, report, program.source, float(data["budget"]), verified, store_root(options),
            as_written=cached.as_written, lift=task.symbolic.lift if task.symbolic else None,
            launch_mode=program.launch_mode, break_even=program.break_even,
        )  # fmt: skip
        if why:
            session.plan_cache_notes.append(f"the checks of this plan are not kept: {why}")
    if compiled is None:
        _keep_kernels(session, entry, program, cached.source)
    if not verified:
        report.verification = None
    report.measured_now, report.from_plan_cache, report.plan_cache_notes = 0, True, session.plan_cache_notes
    report.warnings += [w for w in session.warnings if w not in report.warnings]
    program.report = report
    attach_provenance(program, task, as_written=cached.as_written)
    return program


def _compiled(session: Session, entry: CacheEntry, cached: CachedPlan) -> Binaries | None:
    """The compiled kernels that are stored beside a plan; None without any, and with a warning if their file is
    damaged."""
    try:
        return read_kernels(entry.path, cached.source)
    except (OSError, ValueError) as error:
        session.warnings.append(
            f"kernels of a cached plan are compiled again, because their file cannot be read: {error}"
        )
        return None


def _rebuilt(session: Session, task: Task, entry: CacheEntry, data: Json) -> tuple[CachedPlan, Program, Task]:
    """Rebuild a cached plan and its program; if the plan has free sizes, the task gets the graph in free sizes.

    Raises StalePlan if kernels, prices or the emitted text have changed.
    """
    with session.stage("plan cache"):
        if data["plan"].get("sizes"):
            task = replace(task, symbolic=for_every_size(session, task.source, task.model, task.backends))
        symbolic = task.symbolic
        searched = task.searched(as_written=bool(data.get("as_written")))
        whole = renamed(task.model.graph, searched) if symbolic is None else symbolic.graph
        cached = CachedPlan.of(data, whole, symbolic.lift if symbolic else None)
        if bool(cached.plan.sizes) != (symbolic is not None):
            raise StalePlan("it is for other sizes")
        # an as-written result was timed as a whole, so prices do not matter
        if not cached.as_written:
            _refuse_higher_prices(session, entry, cached, float(data.get("time", 0.0)))
        program = Program(cached.plan).launching(cached.launch_mode, cached.break_even)
        if text_digest(program.source) != cached.source:
            raise StalePlan("its program has another source than the one that was verified")
        return cached, program, task


def _refuse_higher_prices(session: Session, entry: CacheEntry, cached: CachedPlan, stored: float) -> None:
    """Raise StalePlan if prices of a plan's kernels have become worse (`refuse_higher_prices`) since the time `stored`
    (seconds since the epoch). A store with the rows of an earlier check that found nothing is not read, nor one whose
    newer rows are of other kernels."""
    root = store_root(session.options)
    if (rows := shard_names_digest(root)) == cached.store:
        return
    checked = ("prices", entry.path.name, [(s.template.identity, s.cost.us) for s in cached.plan.steps])
    if fact(checked) == rows:
        return
    if has_new_rows_of(cached.plan, root, cached.store, stored):
        with open_store(session) as store:
            refuse_higher_prices(cached.plan, store)
    if shard_names_digest(root) == rows:  # no other process has added any meanwhile
        keep_fact(checked, rows)


def store_plan(session: Session, slot: CacheSlot, found: SearchResult, hashes: WeightHashes) -> None:
    """Store the plan of a search in the cache, unless Ctrl-C ended it; a failure is noted for the report. `hashes`:
    those of weights that were hashed during the search."""
    program, task, options = found.program, found.task, session.options
    if slot.entry is None or session.progress.stopped or program.plan is None:
        return
    with session.stage_clock.running("store plan"):
        verified = _verified_weights(session, task, hashes) if program.report.verification else ""
        short = session.stage_clock.seconds.get("build", 0.0) <= CHECK_S
        why = slot.entry.write(
            program.plan, program.report, program.source, options.budget, verified, store_root(options),
            as_written=found.as_written, lift=task.symbolic.lift if task.symbolic else None,
            checked=short or not session.over, launch_mode=program.launch_mode, break_even=program.break_even,
        )  # fmt: skip
        if why:
            session.plan_cache_notes.append(f"this plan is not kept: {why}")
        else:
            _keep_kernels(session, slot.entry, program, text_digest(program.source))


def _verified_weights(session: Session, task: Task, hashes: WeightHashes) -> str:
    """Digest of the weights that a program was verified with; "" if hashing them would take long after the end of the
    budget, which is noted for the report."""
    hashes.wait()
    left = hashed_bytes(hashes.missing(task.source.params))
    if left > LATE_BYTES and session.over:
        session.plan_cache_notes.append(
            f"the weights this plan was verified with are not recorded: hashing {left:,} bytes would end after the budget. The next call verifies it again"
        )
        return ""
    return weights_digest(task.source.params, hashes)


def _keep_kernels(session: Session, entry: CacheEntry, program: Program, source: str) -> None:
    """Store the compiled kernels of a program beside its plan; a failure is noted for the report."""
    if lost := write_kernels(entry.path, program, source):
        session.plan_cache_notes.append(f"the compiled kernels of this plan are not kept: {lost}")


__all__ = ["CacheSlot", "look_up", "recall", "store_plan", "unchecked"]
