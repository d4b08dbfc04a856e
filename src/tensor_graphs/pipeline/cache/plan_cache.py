"""Stores finished plans (choices of kernels) on disk, so that a search for the same model, machine and options is not
repeated.

A finished search stores its plan in the cache folder under a key of everything that the result depends on: the graph,
sizes, all options but the budget, the cost store's folder, the machine with its tools, and this package's source. A
cached plan is used only if it is still valid: same kernels, same emitted program text, and no price in the store has
become worse. Verification holds for the weights it was made with; other weights are verified again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ... import cache_folder
from ...backends.program.launch.emission import emit_for
from ...backends.tuning.keys import key_of, machine_of
from ...costdb.store import shards
from ...costdb.store.store import Store
from ...egraph.ir.graph import Graph
from ...errors import TensorGraphsError
from ...extract.model.backend import Backend
from ...extract.model.kernel import Candidate, Vertex
from ...extract.model.plan import Plan
from ...models.files.graph_json import graph_to_json
from ...plain import decode
from ...private import read_sealed, sealed
from ...report.report import Report
from ...writing.files import replacing_raw
from ..costs.prices import CostPricer
from .cached_kernels import SUFFIX
from .plan_file import Json, Lift, plan_from_json, plan_to_json, priced_steps

FORMAT = 1
FOLDER = "plans"
WORSE = 1.1  # cost ratio to the cached cost from which a plan is stale
MAX_PLAN_BYTES = 1 << 28  # maximum bytes of a plan file
KEPT_PLANS = 256  # maximum number of cached plans; the most recently used are kept


class StalePlan(Exception):
    """Raised when a cached plan cannot be reused.

    The message is the reason, a clause such as "its file is damaged".
    """


# ---------------------------------------------------------------- the key
def key_of_search(graph: Graph, sizes: object, backends: Sequence[Backend], options: Mapping[str, Any]) -> str:
    """Cache key of a search: equal only if everything that the result depends on is equal. `sizes`: those of free
    dimensions; `options`: all options that decide the result."""
    shape, _ = graph_to_json(graph)
    constants = [str(n.attr("digest")) for n in graph.nodes() if n.op == "constant"]
    kernels = [(b.name, machine_of(b.name), sorted(t.identity for t in b.templates)) for b in backends]
    parts = (
        FORMAT,
        shape,
        constants,
        sizes,
        kernels,
        sorted((k, repr(v)) for k, v in options.items()),
        package_digest(),
    )
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


@cache
def package_digest() -> str:
    """Hash of this package's source, which defines rules, kernels and emitters."""
    root, total = Path(__file__).parents[2], blake2b(digest_size=16)
    folders = os.walk(root, followlinks=True)  # an editable install contains links to folders
    files = sorted(Path(folder, name) for folder, _, names in folders for name in names if not name.endswith(".pyc"))
    for path in files:
        total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


# ---------------------------------------------------------------- files
@dataclass
class CachedPlan:
    """Content of a plan file.

    `source`: hash of the program's text. `verified`: hash of the weights it was verified with, "" if unverified.
    """

    plan: Plan
    report: Report
    source: str
    verified: str
    store: str  # `shard_names_digest` of the cost store after the search
    as_written: bool = False  # the unfused graph was the fastest found
    launch_mode: str = ""  # how calls launch the kernels on a GPU (`Program.launch_mode`)
    break_even: int = 0  # of a GPU program with free sizes (`Program.break_even`)

    @staticmethod
    def of(data: Json, graph: Graph, lift: Lift | None = None) -> CachedPlan:
        """Parse the content `data` of a plan file for a graph (`lift`: derives a kernel for every size from a kernel
        and its call at generic sizes).

        Raises StalePlan if a kernel has changed or the file is damaged.
        """
        try:
            plan, report = plan_from_json(data["plan"], graph, lift), Report.of_json(data["report"])
            source, verified, store = (str(data[key]) for key in ("source", "verified", "store"))
            written, mode = bool(data.get("as_written")), str(data.get("launch_mode", ""))
            calls = int(data.get("break_even", 0))
            return CachedPlan(plan, report, source, verified, store, written, mode, calls)
        except TensorGraphsError as error:
            raise StalePlan(f"it cannot be rebuilt: {error.message}") from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise StalePlan(f"its file is damaged: {type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class _Outcome:
    """Final state of the cached search."""

    search_stopped: str
    omitted: list[str]


@dataclass(frozen=True)
class _Head:
    """The members of a plan file that decide whether the rest is parsed."""

    format: int
    budget: Any  # a number, possibly infinite
    report: _Outcome
    plan: dict[str, Any]
    source: str
    verified: str
    store: str
    as_written: bool = False


@dataclass(frozen=True)
class CacheEntry:
    """The plan cache entry of one search: its file `path`, which need not exist yet."""

    path: Path

    @staticmethod
    def of(key: str) -> CacheEntry:
        """The entry of a key (`key_of_search`): a file in the cache folder, which need not exist."""
        return CacheEntry(cache_folder.private(FOLDER) / f"{key}.json")

    def load(self, budget: float) -> Json | None:
        """The stored JSON; None if there is none. Raises StalePlan if the file is damaged, or if its search was cut
        short by a smaller budget than `budget` seconds."""
        try:
            data = json.loads(read_sealed(self.path, MAX_PLAN_BYTES, self.path.name))
            head = decode(_Head, data)
            if head.format != FORMAT:
                raise ValueError(f"format {head.format}")
            whole = head.report.search_stopped == "measured" and not head.report.omitted
            ended, given = whole or float(head.budget) >= budget, float(head.budget)
            os.utime(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise StalePlan(f"its file cannot be read: {error}") from None
        if not ended:
            raise StalePlan(f"its search was cut short within {given:g} s, and there are {budget:g} s now")
        return dict(data)

    def write(
        self, plan: Plan, report: Report, source: str, budget: float, verified: str, store: Path, *, as_written: bool = False,
        lift: Lift | None = None, checked: bool = True, launch_mode: str = "", break_even: int = 0,
    ) -> str:  # fmt: skip
        """Store a plan with the hash of the cost store's current content.

        Returns the reason if it could not be stored, else "".

        `source`: text of the program. `budget`: seconds of its search. `verified`: hash of the weights it was verified
        with. `as_written`: the result is the unfused graph. `checked`: the plan is parsed back first (`lift` makes
        kernels for every size), which takes most of the time; an unchecked one is checked when it is used.
        `launch_mode`, `break_even`: how calls launch its kernels on a GPU, if that is known.
        """
        try:
            written = plan_to_json(plan)
            data: Json = {
                "format": FORMAT, "plan": written, "report": report.fields(), "budget": budget, "source": text_digest(source),
                "verified": verified, "store": shard_names_digest(store), "time": time.time(),
                "as_written": as_written, "launch_mode": launch_mode, "break_even": break_even,
            }  # fmt: skip
            if checked and emit_for(plan_from_json(json.loads(json.dumps(written)), plan.graph, lift)).source != source:
                return "its program has another source when it is generated again"
            content = sealed(json.dumps(data, separators=(",", ":")).encode(), self.path.name)
            if len(content) > MAX_PLAN_BYTES:
                return f"it takes {len(content):,} bytes, more than the {MAX_PLAN_BYTES:,} that are read"
            with replacing_raw(self.path, own=True) as file:
                file.write(content)
            self._evict()
        except TensorGraphsError as error:
            return error.message
        except OSError as error:
            return f"{error.strerror or error}"
        return ""

    def _evict(self) -> None:
        cache_folder.evict(self.path.parent.glob("*.json"), KEPT_PLANS)
        for kernels in self.path.parent.glob(f"*{SUFFIX}"):
            if not kernels.with_suffix(".json").exists():  # a plan is written before its kernels
                kernels.unlink(missing_ok=True)


def text_digest(source: str) -> str:
    """Hash of a program's source text."""
    return blake2b(source.encode(), digest_size=16).hexdigest()


# ---------------------------------------------------------------- validity of a cached plan
def shard_names_digest(root: Path) -> str:
    """Hash of the names of a cost store's shards (its files). The names are hashes of content, so it changes with the
    content."""
    return _names_digest(shards.find(root))


def _names_digest(found: Iterable[shards.ShardFile]) -> str:
    return blake2b("\n".join(sorted(s.name for s in found)).encode(), digest_size=16).hexdigest()


def has_new_rows_of(plan: Plan, root: Path, store: str, stored: float) -> bool:
    """Whether a cost store may have other prices for a plan's kernels than when the plan was stored.

    `root`: the store's folder. `stored`: time in seconds since the epoch; `store`: digest of the names of the shards at
    that time. False if the store still has all of those shards, and no newer shard has a row of these kernels. Only
    the newer shards are read, which takes a tenth of the time of reading the store."""
    found = shards.find(root)
    newer = [s for s in found if s.mtime_ns > stored * 1e9]
    if _names_digest(s for s in found if s not in newer) != store:
        return True
    own = {key_of(s.template, call).digest for s, call in priced_steps(plan)}
    try:
        return any(not own.isdisjoint(shards.read(s.path).column("digest").to_pylist()) for s in newer)
    except (shards.BadShard, OSError):
        return True


def refuse_higher_prices(plan: Plan, store: Store) -> None:
    """Raise StalePlan unless the kernels of a plan still have about the prices in the store that they had when it was
    chosen.

    All measured ones must still be measured, none may have failed since, and the sum must be at most WORSE times the
    old one.
    """
    found = priced_steps(plan)
    places = [Candidate(s.template, Vertex(-1, call.output.strides), (), call) for s, call in found]
    prices = CostPricer(store).price(places)
    pairs = [(p, s) for p, (s, _) in zip(prices, found)]
    if failed := {s.template.name for p, s in pairs if p.source == "failed" != s.cost.source}:
        raise StalePlan(f"{', '.join(sorted(failed))} has failed since")
    if lost := {s.template.name for p, s in pairs if p.source != "measured" == s.cost.source}:
        raise StalePlan(f"measurements of {', '.join(sorted(lost))} are not in the cost store any more")
    before = sum(s.cost.us for _, s in pairs)
    now = sum(
        p.us if p.source == "measured" else s.cost.us for p, s in pairs
    )  # predictions change with other measurements
    if now > WORSE * before:
        raise StalePlan(f"its kernels now take {now:.1f} µs by the cost store, {before:.1f} µs when it was found")
