"""Plans that were found before: a search for the same model, machine and options need not be made again.

A finished search leaves its plan in the folder of caches, under a key of everything that it depends on: the graph, the sizes, all
options but the budget, the folder of the cost store, the machine with its tools, and this package's own source. What is found
there is believed only if it is as it was: its kernels are the same, the program's text is, and no price in the store has become
worse. Whether it is right was verified for the weights' bytes that it was verified with: for others it is verified again.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np

from . import settings
from .backends.emission import emit_for
from .backends.keys import machine_of
from .costdb import shards
from .costdb.device import cores
from .costdb.store import Store
from .egraph.graph import Data, Graph, load_data
from .errors import TensorGraphsError
from .extract.kernel import Backend, Candidate, Plan, Vertex
from .models.native import graph_to_json
from .plain import decode
from .plan_file import Json, Lift, plan_from_json, plan_to_json, priced_steps
from .prices import CostPricer
from .private import read_sealed, sealed
from .report import Report
from .writing import replacing_raw

FORMAT = 1
FOLDER = "plans"
WORSE = 1.1  # times what a plan cost, from which on the store is taken to have changed for the worse
LARGEST = 1 << 28  # bytes of a plan's file
MOST = 256  # plans that are kept: the latest used
PIECE, AHEAD = 1 << 25, 16  # bytes of weights that are hashed at a time, and pieces that may wait


class Stale(Exception):
    """A plan that was kept is not taken again; its text says why, as the end of a sentence about the plan."""


# ---------------------------------------------------------------- the key
def key_of_search(graph: Graph, sizes: object, backends: Sequence[Backend], options: Mapping[str, Any]) -> str:
    """A name for a search: equal only where everything that its result depends on is."""
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
    """A hash of this package's source: rules, kernels and emitters are what it says."""
    root, total = Path(__file__).parent, blake2b(digest_size=16)
    folders = os.walk(root, followlinks=True)  # an editable install links folders
    files = sorted(Path(folder, name) for folder, _, names in folders for name in names if not name.endswith(".pyc"))
    for path in files:
        total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def content_digest(params: Mapping[str, Data]) -> str:
    """A hash of all weights' bytes, with their names, shapes and dtypes. Pieces are hashed side by side, so that one large table
    takes no longer than the rest; weights are read one by one, and let go of."""

    def hashed(flat: np.ndarray[Any, Any], start: int) -> str:
        return sha256(flat[start : start + PIECE].data).hexdigest()

    lines: list[str] = []
    with ThreadPoolExecutor(max(1, min(8, cores()))) as threads:
        pieces: deque[Future[str]] = deque()
        for name in sorted(params):
            array = np.ascontiguousarray(load_data(params[name]))
            lines.append(f"{name} {array.dtype} {array.shape}")
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, PIECE):
                while len(pieces) >= AHEAD:  # (those that wait hold their weights)
                    lines.append(pieces.popleft().result())
                pieces.append(threads.submit(hashed, flat, start))
        lines += [piece.result() for piece in pieces]
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


# ---------------------------------------------------------------- files
@dataclass
class Remembered:
    """What a file says: the plan, the report of its search, the program's text by hash, and the hash of the weights that it was
    verified with (empty: it was not)."""

    plan: Plan
    report: Report
    source: str
    verified: str
    store: str  # the listing of the cost store after the search
    as_written: bool = False  # nothing faster than the graph as it is written was found

    @staticmethod
    def of(data: Json, graph: Graph, lift: Lift | None = None) -> Remembered:
        """As a plan of a graph (`lift`: see `plan_from_json`); Stale where a kernel has changed or the file is damaged."""
        try:
            plan, report = plan_from_json(data["plan"], graph, lift), Report.of_json(data["report"])
            source, verified, store = (str(data[key]) for key in ("source", "verified", "store"))
            return Remembered(plan, report, source, verified, store, bool(data.get("as_written")))
        except TensorGraphsError as error:
            raise Stale(f"it cannot be made anew: {error.message}") from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise Stale(f"its file is damaged: {type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class _Ended:
    """How the search of a plan's file ended."""

    search_stopped: str
    cut: list[str]


@dataclass(frozen=True)
class _Head:
    """The members of a plan's file that say whether the rest is looked at."""

    format: int
    budget: Any  # a number, which may be infinite
    report: _Ended
    plan: dict[str, Any]
    source: str
    verified: str
    store: str
    as_written: bool = False


@dataclass(frozen=True)
class Memory:
    """The place of one search's plan."""

    path: Path

    @staticmethod
    def of(key: str) -> Memory:
        """Under the folder of caches."""
        return Memory(settings.private(FOLDER) / f"{key}.json")

    def load(self, budget: float) -> Json | None:
        """What the file holds; None where there is none. Stale where it is damaged, or its search was cut by a smaller budget than
        this."""
        try:
            data = json.loads(read_sealed(self.path, LARGEST))
            head = decode(_Head, data)
            if head.format != FORMAT:
                raise ValueError(f"format {head.format}")
            whole = head.report.search_stopped == "measured" and not head.report.cut
            ended, given = whole or float(head.budget) >= budget, float(head.budget)
            os.utime(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise Stale(f"its file cannot be read: {error}") from None
        if not ended:
            raise Stale(f"its search was cut short within {given:g} s, and there are {budget:g} s now")
        return dict(data)

    def write(
        self, plan: Plan, report: Report, source: str, budget: float, verified: str, store: Path, *, as_written: bool = False,
        lift: Lift | None = None,
    ) -> str:  # fmt: skip
        """Write a plan that was found with the cost store as it is now, or the fact that the graph stays `as_written`. Returns why
        it could not be written, '' if it was: the plan is read back first (`lift`: see `plan_from_json`)."""
        try:
            written = plan_to_json(plan)
            data: Json = {
                "format": FORMAT, "plan": written, "report": report.fields(), "budget": budget, "source": text_digest(source),
                "verified": verified, "store": listing(store), "time": time.time(),
                "as_written": as_written,
            }  # fmt: skip
            again = plan_from_json(json.loads(json.dumps(written)), plan.graph, lift)
            if emit_for(again).source != source:
                return "its program reads otherwise when it is made anew"
            with replacing_raw(self.path) as file:
                file.write(sealed(json.dumps(data, separators=(",", ":")).encode()))
            self._make_room()
        except TensorGraphsError as error:
            return error.message
        except OSError as error:
            return f"{error.strerror or error}"
        return ""

    def _make_room(self) -> None:
        used: dict[Path, float] = {}
        for path in self.path.parent.glob("*.json"):
            with suppress(FileNotFoundError):  # another process or thread makes room as well
                used[path] = path.stat().st_mtime
        for old in sorted(used, key=lambda p: used[p], reverse=True)[MOST:]:
            old.unlink(missing_ok=True)


def text_digest(source: str) -> str:
    """A program's text by hash."""
    return blake2b(source.encode(), digest_size=16).hexdigest()


# ---------------------------------------------------------------- is it still so?
def listing(root: Path) -> str:
    """A hash of the names of a store's shards, which name their contents."""
    return blake2b("\n".join(sorted(s.name for s in shards.find(root))).encode(), digest_size=16).hexdigest()


def refuse_dearer(plan: Plan, store: Store) -> None:
    """Stale unless the store prices a plan's kernels about as it did: what was measured is, and all together are no dearer."""
    found = priced_steps(plan)
    places = [Candidate(s.template, Vertex(-1, call.output.strides), (), call) for s, call in found]
    prices = CostPricer(store).price(places)
    pairs = [(p, s) for p, (s, _) in zip(prices, found)]
    if failed := {s.template.name for p, s in pairs if p.source == "failed" != s.cost.source}:
        raise Stale(f"{', '.join(sorted(failed))} has failed since")
    if lost := {s.template.name for p, s in pairs if p.source != "measured" == s.cost.source}:
        raise Stale(f"what was measured of {', '.join(sorted(lost))} is not in the cost store any more")
    before = sum(s.cost.us for _, s in pairs)
    now = sum(
        p.us if p.source == "measured" else s.cost.us for p, s in pairs
    )  # predictions move with what else is measured
    if now > WORSE * before:
        raise Stale(f"its kernels are known to take {now:.1f} µs by now, {before:.1f} µs when it was found")
