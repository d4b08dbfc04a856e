"""Saturates blocks (repeated subgraphs): rounds of rule application under limits, with pruning of expensive e-nodes.

One round applies every rule once, then shape laws, costs and pruning. Rounds run in a worker process (worker.py)
because egglog cannot be interrupted; at the deadline the worker is killed and the last complete view is returned.

The block's own terms are protected from pruning. An e-node that was in one round's view stays in all later views,
although pruned e-nodes match no rule. So a view never loses the original graph or a plan that an earlier round had:
more rounds never make the cheapest plan more expensive.

egglog's back-off scheduler is not used, because it corrupts e-graphs with subsumed rows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from ...errors import RuleError, UsageError, WorkerError
from ...plain import as_float
from ...processes.import_lock import free_import_lock
from ..ir.graph import Graph
from ..patterns.rule import Rule
from ..view.saturation_report import SaturationReport
from ..view.view import EGraphView, view_of
from .beam import victims
from .decoding import decode
from .engine import Arrays
from .engine_bounds import Bounds, Deadline, EngineError, MemoryLimit, Stop, Stopped, never
from .program import EgglogProgram, make_program
from .sessions import OneSession, SaturationSession, Sessions
from .term_cost import Pricing, Roofline

SLACK_LAUNCHES = 3
"""Default pruning slack in kernel launches. It must exceed the extra tree cost of a form that pays only when shared."""

BEAM = 4
"""Default beam width with the cost guard: the smallest width at which no measured graph got a more expensive plan
(benchmarks/saturation/anytime.py).
"""

DECLARE_SECONDS = 30.0
"""Time limit for declaring ops and rules, once per worker; not charged to a block."""


@dataclass(frozen=True)
class Limits:
    """Limits of one block's saturation.

    `nodes`: live e-nodes. `iterations`: rounds. `seconds`: wall-clock time. `bytes`: resident memory of the worker.
    `beam`: per e-class only the k cheapest e-nodes and the cheapest of every op are rewritten further; the others stay
    in the view and can be chosen. Beam 0 means no beam; None means `BEAM` with the cost guard and 0 without. `slack`,
    in kernel launches: an e-node is kept if its tree cost exceeds the best of its e-class by at most this. Saturations
    with different beams or slacks are not nested; `saturate/limit_steps.py` derives nested results from these limits.
    """

    nodes: int = 20_000
    iterations: int = 10
    seconds: float = 5.0
    bytes: int = 2 << 30
    beam: int | None = None
    slack: float = SLACK_LAUNCHES

    def __post_init__(self) -> None:
        for name in ("nodes", "iterations", "beam", "bytes", "seconds", "slack"):
            value, kind = getattr(self, name), Integral if name in ("nodes", "iterations", "beam") else Real
            if not ((isinstance(value, kind) and as_float(value) >= 0) or (value is None and name == "beam")):
                raise UsageError(
                    f"invalid limit {name}={repr(value)[:80]}",
                    hint=f"a {'whole ' if kind is Integral else ''}number from 0 on",
                )

    def longer(self, times: int) -> Limits:
        """These limits extended `times` times: each time e-nodes and seconds are doubled and rounds grow by 4."""
        return replace(
            self, nodes=self.nodes << times, iterations=self.iterations + 4 * times, seconds=self.seconds * 2**times
        )


# ---------------------------------------------------------------- views


# ---------------------------------------------------------------- the loop
class _Saturation:
    """Saturation of one block. `end`: when the whole call is to end, by `time.perf_counter`; starting the worker and
    declaring the rules, which the limits leave out, count for it."""

    def __init__(
        self,
        graph: Graph,
        program: EgglogProgram,
        limits: Limits,
        pricing: Pricing,
        stop: Stop,
        seen: list[EGraphView] | None,
        end: float = float("inf"),
    ) -> None:
        self.program, self.limits, self.pricing, self.stop, self.seen = program, limits, pricing, stop, seen
        self.end = end
        self.lowered = program.lower(graph)
        self.dims = list(self.lowered.dims)
        self.begin = time.perf_counter()
        self.best = view_of(graph)
        self.sizes = [self.lowered.own]
        self.matches: Counter[str] = Counter(dict.fromkeys(program.names, 0))
        self.rule_seconds: Counter[str] = Counter()
        self.kept = self.iterations = 0
        self.extractable, self.message = True, ""

    def run(self, session: SaturationSession) -> EGraphView:
        """The last complete view within the limits; its report names the limit that ended the search."""
        try:
            if self.limits.iterations and self.limits.seconds and not self.stop():
                session.prepare()
                session.request("declare", self.program.declaration, Bounds(DECLARE_SECONDS, 0, self.stop))
            self.begin = time.perf_counter()
            stopped = self.rounds(session)
        except Deadline:
            stopped = "seconds"
        except MemoryLimit:
            stopped = "bytes"
        except (KeyboardInterrupt, Stopped):
            free_import_lock()
            stopped = "interrupted"
        except WorkerError as error:
            stopped, self.message = "worker-died", error.message
        except EngineError as error:
            raise RuleError(
                f"egglog refused a rule or found two types for one value: {error}",
                hint="a rule is unsound or its guard is too weak: run `tensor-graphs rules check`",
            ) from None
        report = SaturationReport(
            stopped=stopped,
            iterations=self.iterations,
            sizes=tuple(self.sizes),
            matches=dict(self.matches),
            rule_seconds=dict(self.rule_seconds),
            seconds=time.perf_counter() - self.begin,
            kept=self.kept,
            extractable=self.extractable,
            message=self.message,
        )
        return replace(self.best, report=report)

    def ask(self, session: SaturationSession, method: str, payload: Any = None) -> tuple[dict[str, Any], Arrays]:
        """(header, arrays) of the reply to a request, which is bounded by the remaining time. Raises Stopped or
        Deadline if none remains."""
        now = time.perf_counter()
        seconds = min(self.limits.seconds - (now - self.begin), self.end - now)
        if self.stop():
            raise Stopped
        if seconds <= 0:
            raise Deadline
        return session.request(method, payload, Bounds(seconds, self.limits.bytes, self.stop))

    def rounds(self, session: SaturationSession) -> str:
        """Run rounds until nothing changes or a limit is reached; returns the reason.

        Each view contains the e-nodes of the previous one.
        """
        if not self.limits.iterations:
            return "iterations"
        if not self.limits.seconds:
            return "seconds"
        self.ask(session, "start", self.program.job(self.lowered, self.limits.nodes))
        while self.iterations < self.limits.iterations:
            header, arrays = self.ask(session, "step")
            self.count(header)
            if header["live"] > self.limits.nodes:
                return "nodes"
            self.dims += [tuple(d) for d in header["new_dims"]]
            view = decode(self.lowered, self.dims, header["names"], arrays)
            if len(view) > self.limits.nodes:
                return "nodes"
            if not view.extractable():
                self.extractable = False
                return "saturated" if not header["updated"] else "iterations"
            self.best, self.kept = view, self.iterations
            if self.seen is not None:
                self.seen.append(view)
            if not header["updated"]:
                return "saturated"
            if self.limits.beam and self.iterations < self.limits.iterations:
                dropped = victims(arrays, header["names"], self.dims, self.pricing, self.limits.beam)
                if dropped:
                    self.ask(session, "prune", dropped)
        return "iterations"

    def count(self, header: dict[str, Any]) -> None:
        """Add one round's statistics; a rule that is compiled once per rank counts as one rule."""
        self.iterations += 1
        self.sizes.append(header["live"])
        for name, count in header["matches"].items():
            self.matches[name.split("@")[0]] += count
        for name, seconds in header["rule_seconds"].items():
            self.rule_seconds[name.split("@")[0]] += seconds


def saturate_block(
    graph: Graph,
    rules: Iterable[Rule],
    limits: Limits | None = None,
    pricing: Pricing | None = None,
    slack: int | None = None,
    exact: bool = False,
    *,
    guard: bool = True,
    session: SaturationSession | None = None,
    stop: Stop = never,
) -> EGraphView:
    """Saturate one block (repeated subgraph); returns the e-graph (as arrays) of all terms that the rules reach within
    the limits.

    `slack` (nanoseconds; default `limits.slack` launches): an e-node is kept if its tree cost exceeds the best of its
    e-class by at most this. `guard=False` disables pruning. Composite ops are united with their decompositions, unless
    `exact`, which also restricts the rules to those that change no bit of a value. The report tells what ended the
    search; `stop` is polled. Raises RuleError for a rule that cannot be expressed in egglog, or an unsound rule that
    gave one value two types.
    """
    pool = None if session is None else OneSession(session)
    return saturate_blocks([graph], rules, limits, pricing, slack, exact, guard=guard, pool=pool, stop=stop)[0]


def saturate_blocks(
    graphs: Sequence[Graph],
    rules: Iterable[Rule],
    limits: Limits | None = None,
    pricing: Pricing | None = None,
    slack: int | None = None,
    exact: bool = False,
    *,
    guard: bool = True,
    pool: Sessions | None = None,
    deadline: float = float("inf"),
    seen: Sequence[list[EGraphView]] = (),
    stop: Stop = never,
    careful: Sequence[Graph] = (),
) -> list[EGraphView]:
    """Run `saturate_block` for every graph, in parallel up to the pool size; returns the saturated e-graphs (views) in
    the order of the graphs.

    `exact`: use only rules that change no bit, as for the graphs `careful`. `guard`: prune expensive e-nodes (by
    `slack`, in nanoseconds, and the beam of the limits). `seen`: one list per graph, to which the view of each round is
    appended. `deadline` bounds the seconds of the whole call; blocks (repeated subgraphs) without time left are
    returned unchanged. Ctrl-C, or `stop` returning true, ends the workers: blocks keep their last complete view and
    their reports say "interrupted". Blocks with empty values (0 elements), for which no law holds, are returned
    unchanged and their reports say so. Raises UsageError for a negative `slack`.
    """
    limits, pricing = limits or Limits(), pricing or Roofline()
    if slack is not None and slack < 0:
        raise UsageError(f"slack={slack} is negative")
    slack = int(limits.slack * pricing.launch) if slack is None else slack
    limits = limits if limits.beam is not None else replace(limits, beam=BEAM if guard else 0)
    bitwise = {id(g) for g in (graphs if exact else careful)}
    programs = _programs(graphs, bitwise, list(rules), pricing, slack if guard else None, limits.beam or 0)
    if pool is None:
        from .worker import default_pool

        pool = default_pool()
    views_of = {id(g): views for g, views in zip(graphs, seen)}
    run = _BlocksRun(programs, bitwise, limits, pricing, views_of, time.perf_counter() + deadline, pool, stop)
    if pool.size == 1 or len(graphs) <= 1:
        return [run.saturated(g) for g in graphs]
    return _in_threads(run.saturated, graphs, pool.size, run.pressed)


@dataclass
class _BlocksRun:
    """One call of `saturate_blocks`.

    `programs`: compiled rules, by whether they change no bit, as for the graphs whose ids are in `bitwise`.
    `views_of`: id of a graph -> list that takes the views of its rounds. `end`: of the whole call, in seconds of
    `perf_counter`. `pressed`: set when Ctrl-C arrived in any thread.
    """

    programs: Mapping[bool, EgglogProgram]
    bitwise: Container[int]
    limits: Limits
    pricing: Pricing
    views_of: Mapping[int, list[EGraphView]]
    end: float
    pool: Sessions
    stop: Stop
    pressed: threading.Event = field(default_factory=threading.Event)

    def saturated(self, graph: Graph) -> EGraphView:
        """The saturated e-graph of one block, in a session of the pool; the block itself if it has empty values."""
        if any(0 in n.shape for n in graph.nodes()):
            return view_of(graph, SaturationReport(sizes=(len(graph.nodes()),), message="empty values: not rewritten"))
        with self.pool.session() as session:
            seconds = max(0.0, min(self.limits.seconds, self.end - time.perf_counter()))
            view = _Saturation(
                graph,
                self.programs[id(graph) in self.bitwise],
                replace(self.limits, seconds=seconds),
                self.pricing,
                lambda: self.pressed.is_set() or self.stop(),
                self.views_of.get(id(graph)),
                self.end,
            ).run(session)
        if view.report.stopped == "interrupted":  # Ctrl-C arrived in this thread: stop the other blocks too
            self.pressed.set()
        return view


def _programs(
    graphs: Sequence[Graph],
    bitwise: Container[int],
    rules: Sequence[Rule],
    pricing: Pricing,
    slack: int | None,
    beam: int,
) -> dict[bool, EgglogProgram]:
    """Compiled rules: under True for graphs whose ids are in `bitwise`, with the rules that change no bit; under False
    for the others. A key without graphs is left out."""
    found = {}
    for keeps_bits in (True, False):
        if some := [g for g in graphs if (id(g) in bitwise) == keeps_bits]:
            own = [r for r in rules if r.exact or not keeps_bits]
            found[keeps_bits] = make_program(some, own, pricing, slack, beam, parts=not keeps_bits)
    return found


def _in_threads(
    one: Callable[[Graph], EGraphView], graphs: Sequence[Graph], size: int, pressed: threading.Event
) -> list[EGraphView]:
    """`one(graph)` of every graph, in at most `size` threads; Ctrl-C sets `pressed` and waits for all of them."""
    with ThreadPoolExecutor(min(size, len(graphs))) as threads:
        # largest first, so that no worker starts a large block at the end
        largest = sorted(graphs, key=lambda g: -len(g.nodes()))
        waiting = {id(g): threads.submit(one, g) for g in largest}
        futures = [waiting[id(g)] for g in graphs]
        try:
            wait(futures)
        except KeyboardInterrupt:
            free_import_lock()
            pressed.set()
            wait(futures)
        return [f.result() for f in futures]


__all__ = ["Limits", "saturate_block", "saturate_blocks"]
