"""Saturation of one block: rules are applied round by round under limits, dominated forms are pruned, the best view wins.

A round is: every rule once, shape laws, costs, pruning. It runs in a worker process (worker.py) because nothing can stop
egglog inside a round; the deadline is kept by killing the worker, and the last good view stands. The block's own terms
are protected from pruning, so every view holds them: a view never loses the graph that it came from.

The bundled back-off scheduler of egglog is not used: it damages e-graphs with subsumed rows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import RuleError, UsageError, WorkerError
from .beam import kill_rules, victims
from .engine import Arrays, Bounds, Deadline, Engine, EngineError, MemoryLimit, Stop, Stopped, never
from .graph import Graph
from .language import Interner, base_declarations, constructors, declare_op, rank_facts, signature
from .lower import Lowered, lower
from .ops import OPS, Type
from .pricing import CAP, Pricing, Roofline, cost_program
from .rewrite import applicable, changes_rank, collect_constants, compile_rule
from .rule import Rule
from .view import EGraphView, SaturationReport, view_of

if TYPE_CHECKING:
    from .worker import Pool

Score = Callable[[EGraphView], float]
SLACK_LAUNCHES = 3
"""Default slack of pruning, in launches: it must exceed the extra tree cost of a form that pays when shared."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one block's saturation: live e-nodes, rounds, wall-clock seconds, the worker's resident bytes, and the
    beam: with `beam` = k > 0 each class keeps, after every round, its k cheapest e-nodes and the best one of every op."""

    nodes: int = 20_000
    iterations: int = 10
    seconds: float = 5.0
    bytes: int = 2 << 30
    beam: int = 0

    def __post_init__(self) -> None:
        for name in ("nodes", "iterations", "beam", "bytes", "seconds"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"limit {name}={getattr(self, name)} is negative")


class Session(Protocol):
    """Where egglog runs: this process (`InProcess`) or a worker."""

    def prepare(self) -> None:
        """Make ready to serve; the time it takes is not part of a limit."""
        ...

    def request(self, method: str, payload: Any, bounds: Bounds) -> tuple[dict[str, Any], Arrays]:
        """Call a method of `Engine`. Raises Deadline, MemoryLimit, Stopped, WorkerError (the worker died), EngineError."""
        ...


class InProcess:
    """A session in this process, for tests and debugging: nothing can stop a round once it runs."""

    def prepare(self) -> None:
        """See `Session.prepare`."""
        self.engine = Engine()

    def request(self, method: str, payload: Any, bounds: Bounds) -> tuple[dict[str, Any], Arrays]:
        """See `Session.request`."""
        if bounds.stop():
            raise Stopped
        arguments = [] if payload is None else [payload]
        found: tuple[dict[str, Any], Arrays] = getattr(self.engine, method)(*arguments)
        return found


# ---------------------------------------------------------------- the job
def make_job(
    lowered: Lowered, rules: Sequence[Rule], limits: Limits, pricing: Pricing, slack: int | None
) -> dict[str, Any]:
    """Everything the engine needs for one block, as JSON. Only the ops that can ever occur are declared.

    Without a slack nothing is pruned in egglog; a beam then still prunes.
    """
    usable, reachable = applicable(rules, lowered.ops)
    names = constructors(reachable)
    ranks = list(range(max(lowered.ranks) + 2))
    spelled = set(lowered.ranks)
    if any(changes_rank(r) for r in usable):
        spelled |= {r + d for r in lowered.ranks for d in (-1, 1) if r + d >= 0}
    guarded = slack is not None or bool(limits.beam)
    commands = [*base_declarations(), *rank_facts(ranks)]
    for name in names:
        commands += declare_op(name, ranks, guarded=guarded)
    if guarded:
        commands += cost_program(pricing, names, 8 * CAP if slack is None else slack)
    commands += kill_rules(names) if limits.beam else []
    texts = ["(ruleset r_rules)"]
    for rule in usable:
        texts += [text for _, text in compile_rule(rule, lowered.interner, sorted(spelled), guarded=guarded)]
    return {
        "commands": commands,
        "rules": texts,
        "tables": lowered.tables(),
        "dims": [list(d) for d in lowered.dims],
        "signatures": {"Leaf": "I"} | {name: signature(name) for name in names},
        "handles": len(lowered.nodes),
        "nodes": limits.nodes,
        "pruned": guarded,
        "beam": bool(limits.beam),
    }


# ---------------------------------------------------------------- views
def decode(lowered: Lowered, dims: Sequence[tuple[int, ...]], names: Sequence[str], arrays: Arrays) -> EGraphView:
    """The engine's arrays as a view: untyped e-nodes and those no root reaches are left out, classes are numbered
    breadth first from the roots."""
    handle = dict(arrays["handle"].tolist())
    cls, off, kid = (arrays[k].tolist() for k in ("cls", "off", "kid"))
    attr_off, attr = arrays["attr_off"].tolist(), arrays["attr"].tolist()
    shape, dtype = arrays["shape"].tolist(), arrays["dtype"].tolist()
    rows_of: dict[int, list[int]] = {}
    for row, c in enumerate(cls):
        if shape[c] >= 0 and all(shape[k] >= 0 for k in kid[off[row] : off[row + 1]]):
            rows_of.setdefault(c, []).append(row)
    number: dict[int, int] = {}
    queue = list(dict.fromkeys(handle[r] for r in lowered.roots))
    number.update((c, i) for i, c in enumerate(queue))
    order: list[int] = []
    for c in queue:  # grows while it is read
        for row in rows_of.get(c, ()):
            order.append(row)
            for k in kid[off[row] : off[row + 1]]:
                if k not in number:
                    number[k] = len(queue)
                    queue.append(k)
    ops = arrays["op"].tolist()
    op, attrs, tensors = [], [], {}
    letters = {name: signature(name).lstrip("T") for name in names if name != "Leaf"}
    for place, row in enumerate(order):
        name, values = names[ops[row]], attr[attr_off[row] : attr_off[row + 1]]
        if name == "Leaf":
            leaf = lowered.nodes[values[0]]
            tensors[place] = leaf
            op.append(leaf.op)
            attrs.append(leaf.attrs)
        else:
            full = [dims[v] if letter == "D" else v for letter, v in zip(letters[name], values)]
            op.append(name)
            attrs.append(lowered.decode(name, full))
    return EGraphView(
        op=op,
        attrs=attrs,
        cls=np.array([number[cls[r]] for r in order], np.int32),
        off=np.cumsum([0, *(off[r + 1] - off[r] for r in order)]).astype(np.int32),
        kid=np.array([number[k] for r in order for k in kid[off[r] : off[r + 1]]], np.int32),
        types=[Type(dims[shape[c]], lowered.interner.decode("dtype", dtype[c])) for c in queue],
        weight=arrays["weight"][np.array(queue, np.int64)],
        roots=tuple(number[handle[r]] for r in lowered.roots),
        report=SaturationReport(),
        tensors=tensors,
        classes={n: number[handle[i]] for i, n in enumerate(lowered.nodes) if handle[i] in number},
    )


def node_prices(view: EGraphView, pricing: Pricing) -> list[float]:
    """The price of every e-node; one whose operands are all weight-only costs nothing."""
    known: dict[tuple[Any, ...], int] = {}
    formulas = {op: pricing.formula(OPS[op]) for op in set(view.op)}
    weight, types, found = view.weight.tolist(), view.types, []
    cls, off, kid = view.cls.tolist(), view.off.tolist(), view.kid.tolist()
    for i, op in enumerate(view.op):
        kids = kid[off[i] : off[i + 1]]
        if all(weight[k] for k in kids):
            found.append(0.0)
            continue
        operands = [types[k] for k in kids]
        key = (op, types[cls[i]], *operands)
        if key not in known:
            known[key] = formulas[op].evaluate(types[cls[i]], operands)
        found.append(float(known[key]))
    return found


def default_score(pricing: Pricing) -> Callable[[EGraphView], float]:
    """Cost of a view's best plan, quickly: the terms of least tree cost, what they share counted once."""

    def score(view: EGraphView) -> float:
        prices = node_prices(view, pricing)
        return view.dag_cost(prices, view.cheapest(prices)[1])

    return score


# ---------------------------------------------------------------- the loop
class _Saturation:
    """One block on its way."""

    def __init__(
        self, graph: Graph, rules: Sequence[Rule], limits: Limits, pricing: Pricing, slack: int | None, stop: Stop
    ) -> None:
        self.limits, self.pricing, self.stop = limits, pricing, stop
        interner = Interner()
        constants = collect_constants(rules, interner)
        self.lowered = lower(graph, interner, constants)
        self.job = make_job(self.lowered, rules, limits, pricing, slack)
        self.dims = list(self.lowered.dims)
        self.begin = time.perf_counter()
        self.best = view_of(graph)
        self.sizes = [len(self.lowered.nodes)]
        self.matches: Counter[str] = Counter({r.name: 0 for rule in rules for r in rule.directions})
        self.rule_seconds: Counter[str] = Counter()
        self.kept = self.iterations = 0
        self.extractable, self.message = True, ""

    def run(self, session: Session, score: Score) -> EGraphView:
        """The best view within the limits, whatever ends the search."""
        try:
            if self.limits.iterations and not self.stop():
                session.prepare()
            self.begin = time.perf_counter()
            stopped = self.rounds(session, score)
        except Deadline:
            stopped = "seconds"
        except MemoryLimit:
            stopped = "bytes"
        except (KeyboardInterrupt, Stopped):
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

    def ask(self, session: Session, method: str, payload: Any = None) -> tuple[dict[str, Any], Arrays]:
        """A request within what is left of the limits."""
        seconds = self.limits.seconds - (time.perf_counter() - self.begin)
        if self.stop():
            raise Stopped
        if seconds <= 0:
            raise Deadline
        return session.request(method, payload, Bounds(seconds, self.limits.bytes, self.stop))

    def rounds(self, session: Session, score: Score) -> str:
        """Rounds until nothing changes or a limit is met; the reason."""
        if not self.limits.iterations:
            return "iterations"
        cheapest = score(self.best)
        self.ask(session, "start", self.job)
        while self.iterations < self.limits.iterations:
            header, arrays = self.ask(session, "step")
            self.count(header)
            if header["live"] > self.limits.nodes:
                return "nodes"
            self.dims += [tuple(d) for d in header["new_dims"]]
            view = decode(self.lowered, self.dims, header["names"], arrays)
            if not view.extractable():  # the rows that pruning took are gone: the last good view stands
                self.extractable = False
                return "saturated" if not header["updated"] else "iterations"
            cost = score(view)
            if cost <= cheapest:
                self.best, cheapest, self.kept = view, cost, self.iterations
            if not header["updated"]:
                return "saturated"
            if self.limits.beam and self.iterations < self.limits.iterations:
                dropped = victims(arrays, header["names"], self.dims, self.pricing, self.limits.beam)
                if dropped:
                    self.ask(session, "prune", dropped)
        return "iterations"

    def count(self, header: dict[str, Any]) -> None:
        """Book a round: rules written once per rank count as one."""
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
    session: Session | None = None,
    score: Score | None = None,
    stop: Stop = never,
) -> EGraphView:
    """All forms of a block that the rules reach within the limits.

    `slack` (nanoseconds; default 3 launches) is how much dearer than its class's best an e-node's tree may be and still
    be kept; `guard=False` keeps everything. With `exact` only bitwise-exact rules are used. Of all rounds the view with
    the cheapest `score` is returned, the latest of equals; its report says what stopped the search. `stop` is polled.
    RuleError: a rule that cannot be said in egglog, or an unsound one that gave one value two types.
    """
    chosen = [r for r in rules if r.exact or not exact]
    pricing = pricing or Roofline()
    if slack is not None and slack < 0:
        raise UsageError(f"slack={slack} is negative")
    if slack is None:
        slack = SLACK_LAUNCHES * pricing.launch
    work = _Saturation(graph, chosen, limits or Limits(), pricing, slack if guard else None, stop)
    score = score or default_score(pricing)
    if session is not None:
        return work.run(session, score)
    from .worker import default_pool

    with default_pool().session() as worker:
        return work.run(worker, score)


def saturate_blocks(
    graphs: Sequence[Graph],
    rules: Iterable[Rule],
    limits: Limits | None = None,
    *,
    pool: Pool | None = None,
    deadline: float = float("inf"),
    stop: Stop = never,
    **options: Any,
) -> list[EGraphView]:
    """`saturate_block` on every graph, as many at a time as the pool has workers; views in the graphs' order.

    `deadline` bounds the seconds of the whole call: blocks that it leaves no time stay as they came. Ctrl-C, or `stop`
    turning true, ends the workers: blocks keep their last good view, and their reports say "interrupted".
    """
    from .worker import default_pool

    workers, chosen, bounds = pool or default_pool(), tuple(rules), limits or Limits()
    pressed, end = threading.Event(), time.perf_counter() + deadline
    halted = lambda: pressed.is_set() or stop()

    def one(graph: Graph) -> EGraphView:
        with workers.session() as session:
            seconds = max(0.0, min(bounds.seconds, end - time.perf_counter()))
            own = replace(bounds, seconds=seconds)
            return saturate_block(graph, chosen, own, session=session, stop=halted, **options)

    with ThreadPoolExecutor(workers.size) as threads:
        futures = [threads.submit(one, g) for g in graphs]
        try:
            wait(futures)
        except KeyboardInterrupt:
            pressed.set()
            wait(futures)
        return [f.result() for f in futures]


__all__ = ["Bounds", "Deadline", "InProcess", "Limits", "MemoryLimit", "Session", "Stopped", "decode", "default_score",
           "make_job", "node_prices", "saturate_block", "saturate_blocks"]  # fmt: skip
