"""Reads and writes the egraph-serialize JSON format, plain or gzipped.

`{"nodes": {id: {"op", "cost", "eclass", "children"}}, "root_eclasses": [...]}`; children name nodes (standing for their
class) or, in files of some writers, classes. `class_data` may name classes without nodes, and classes that a program
has bound to a variable (`"let"`, written by egglog). Other top-level keys are ignored.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import settings
from ...errors import ExtractionError
from ...plain import is_file
from ...wording import with_article
from ...writing.files import named_path, write_bytes
from ..model.gc_pause import gc_paused
from .extraction import Extraction
from .problem import Problem, reachable

MIN_FILE_MEMORY = 384 << 20
MEMORY_PER_BYTE = 400
"""Memory limit in bytes of a file's parsed objects: the larger of a constant and a multiple of the file size (gzipped:
e-graphs compress by a factor of 10 to 40)."""

TEXT_MEMORY_DIVISOR = 4
"""Divisor of that limit for the decompressed text, which is in memory twice while it is parsed."""

VALUE_BYTES, OBJECT_BYTES = 72, 400
"""Estimated memory in bytes of a parsed value in a list or object, and of an object with a few keys."""


def read_egraph(path: str | Path, *, memory: int = 0, roots: Sequence[str | int] = ()) -> Problem:
    """Read an e-graph from a `.json` or `.json.gz` file; ids and costs as in the file (a missing cost is 1), and its
    roots unless `roots` are given, as in `parse_egraph`.

    Raises ExtractionError, with file and position, for any other content. `memory`: limit in bytes on the parsed
    objects (0: `memory_for` the file).
    """
    return parse_egraph(read_document(path, memory=memory), where=str(path), roots=roots)


@gc_paused()
def parse_egraph(document: Any, *, where: str = "e-graph", roots: Sequence[str | int] = ()) -> Problem:
    """The problem of a parsed document. Nodes flagged `subsumed` are deleted, and so are nodes that depend on them.

    `roots`: the classes to extract instead of the document's, each named by its id, the id of a node of it, or the
    variable that it is bound to. Raises ExtractionError, which names the document by `where`, for any other content.
    """
    nodes = _member(document, "nodes", Mapping, where)
    classes: dict[str, int] = {}
    owner: dict[str, int] = {}
    for name, node in nodes.items():
        eclass = node.get("eclass") if isinstance(node, dict) else None
        if not isinstance(eclass, str):  # message texts are built only for errors: files have 100,000 nodes
            eclass = _eclass(node, f"{where}: nodes[{_short(name)}]")
        owner[name] = classes.setdefault(eclass, len(classes))
    known = document.get("class_data")
    if isinstance(known, Mapping):
        for name in known:  # a class whose nodes were all subsumed: no node is left
            classes.setdefault(name, len(classes))
    rows = ((owner[name], *_children_and_cost(node, name, owner, classes, where)) for name, node in nodes.items())
    wanted = _wanted_roots(document, roots, owner, classes, where)
    try:
        return Problem.build(rows, wanted, node_ids=list(nodes), class_ids=list(classes))
    except ExtractionError as error:  # errors of a row name the document already
        at = error.where if error.where.startswith(f"{where}: ") else f"{where}: {error.where}"
        raise ExtractionError(error.message, where=at, hint=error.hint) from None


def _wanted_roots(
    document: Any, given: Sequence[str | int], owner: Mapping[str, int], classes: Mapping[str, int], where: str
) -> list[int]:
    """The classes to extract, each once: the given ones, else the document's, which are named by their ids alone."""
    own = [] if given and "root_eclasses" not in document else _member(document, "root_eclasses", list, where)
    bound = _bound_classes(document.get("class_data"), classes)
    variables = ", ".join([name for name in bound if not name.startswith("$")][:5])
    example = f", of a node of it, or a variable: {variables}" if variables else ", or of a node of it"
    hint = f"name the classes to extract, --root ID or roots=[...], by the id of a class{example}"
    place = f"{where}: {'roots' if given else 'root_eclasses'}"
    wanted = [_identifier(root, place) for root in given or own]
    if not wanted:
        raise ExtractionError("no root class", where=place, hint=hint)
    known = {**owner, **bound, **classes} if given else classes
    if missing := [name for name in wanted if name not in known]:
        raise ExtractionError(f"root class {_short(missing[0])} has no node", where=place, hint=hint)
    return list(dict.fromkeys(known[name] for name in wanted))


def _bound_classes(class_data: Any, classes: Mapping[str, int]) -> dict[str, int]:
    """Classes by the variable that `class_data` binds to them ("let"), with and without egglog's leading `$`."""
    found: dict[str, int] = {}
    for name, data in class_data.items() if isinstance(class_data, Mapping) else ():
        if isinstance(data, Mapping) and isinstance(variable := data.get("let"), str):
            found |= {variable: classes[name], variable.removeprefix("$"): classes[name]}
    return found


def write_egraph(
    path: str | Path, problem: Problem, *, ops: Sequence[str] | None = None, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a problem (gzipped if the name ends in .gz), atomically. Raises UnwritableError if it cannot be written.

    `ops[i]` is node i's operator; `extra` adds top-level keys."""
    first: dict[int, int] = {}
    for node, c in enumerate(problem.cls.tolist()):
        first.setdefault(c, node)
    off, child = problem.off.tolist(), problem.child.tolist()
    nodes = {
        problem.node_name(i): {
            "op": ops[i] if ops is not None else problem.node_name(i),
            # JSON has no infinity; readers treat this value as deleted
            "cost": min(float(problem.cost[i]), sys.float_info.max),
            "eclass": problem.class_name(c),
            "children": [
                problem.node_name(first[k]) if k in first else problem.class_name(k) for k in child[off[i] : off[i + 1]]
            ],
        }
        for i, c in enumerate(problem.cls.tolist())
    }
    empty: dict[str, Any] = {problem.class_name(c): {} for c in range(problem.n_classes) if c not in first}
    document: dict[str, Any] = {
        "nodes": nodes,
        "root_eclasses": [problem.class_name(r) for r in problem.roots],
        **(extra or {}),
    }
    if empty:
        document.setdefault("class_data", {}).update(empty)
    data = json.dumps(document).encode()
    write_bytes(path, gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def to_json(problem: Problem, extraction: Extraction) -> dict[str, Any]:
    """An extraction as JSON fields `cost, lower_bound, gap, optimal, seconds, choices`.

    choices = {class id: node id} for every class reachable from the roots, roots first.
    """
    chosen = reachable(problem, extraction.choice)
    return {
        "cost": extraction.cost,
        "lower_bound": extraction.lower_bound,
        "gap": extraction.gap,
        "optimal": extraction.optimal,
        "seconds": extraction.seconds,
        "choices": {problem.class_name(int(problem.cls[i])): problem.node_name(i) for i in reversed(chosen)},
    }


def memory_for(path: Path) -> int:
    """Memory limit in bytes of a file's parsed objects.

    The setting `file_memory`, otherwise derived from the file size.
    """
    return settings.current().file_memory or max(MIN_FILE_MEMORY, MEMORY_PER_BYTE * path.stat().st_size)


def parsed_bytes(data: bytes) -> int:
    """Estimated memory in bytes of JSON text as Python objects, without parsing."""
    return VALUE_BYTES * (data.count(b",") + data.count(b"[")) + OBJECT_BYTES * data.count(b"{") + len(data)


@gc_paused()
def read_document(path: str | Path, *, memory: int = 0) -> Any:
    """The parsed JSON of a plain or gzipped file; raises ExtractionError if it is defective.

    The parsed objects may take `memory` bytes (0: `memory_for` the file): larger content is refused before parsing.
    """
    path = named_path(path)
    where = str(path)
    if os.path.exists(path) and not is_file(path):  # os.path.exists raises nothing
        raise ExtractionError("it is not a plain file", where=where)
    try:
        memory = memory or memory_for(path)
        most = memory // TEXT_MEMORY_DIVISOR
        with gzip.open(path, "rb") if path.name.endswith(".gz") or _is_gzip(path) else path.open("rb") as file:
            data = file.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ExtractionError(f"the gzip data is damaged or truncated: {error}", where=where) from None
    except OSError as error:
        raise ExtractionError(f"cannot be read: {error.strerror or error}", where=where) from None
    if len(data) > most:
        raise ExtractionError(f"larger than {most} bytes when decompressed", where=where, hint=_MORE_MEMORY)
    if (needed := parsed_bytes(data)) > memory:
        raise ExtractionError(
            f"would take about {needed} bytes of memory, more than {memory}", where=where, hint=_MORE_MEMORY
        )
    try:
        return json.loads(data, object_pairs_hook=_unique)
    except RecursionError:
        raise ExtractionError("nested too deeply", where=where) from None
    except ExtractionError as error:
        raise ExtractionError(error.message, where=where) from None
    except ValueError as error:  # bad JSON, bad UTF-8, an integer of too many digits
        raise ExtractionError(
            f"not JSON: {error}", where=where, hint="`saturate` makes such a file of a model"
        ) from None


_MORE_MEMORY = "if you trust the file: the setting file_memory (TENSOR_GRAPHS_FILE_MEMORY), in bytes"


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ExtractionError(f"the key {_short(twice)} occurs twice in one object")
    return found


def _member(document: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(document, Mapping) or name not in document:
        raise ExtractionError(f"no key {name!r} at the top level", where=where, hint="expected egraph-serialize JSON")
    if not isinstance(document[name], kind):
        raise ExtractionError(
            f"{name} must be {with_article(kind.__name__)}, not {type(document[name]).__name__}", where=where
        )
    return document[name]


def _identifier(value: Any, where: str) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise ExtractionError(f"an id must be text or an integer, not {type(value).__name__}", where=where)


def _eclass(node: Any, place: str) -> str:
    """The class of a node whose `eclass` is not a plain text."""
    if not isinstance(node, Mapping):
        raise ExtractionError(f"a node must be an object, not {type(node).__name__}", where=place)
    if "eclass" not in node:
        raise ExtractionError("a node has no eclass", where=place)
    return _identifier(node["eclass"], place + ".eclass")


def _children_and_cost(
    node: Mapping[str, Any], name: str, owner: Mapping[str, int], classes: Mapping[str, int], where: str
) -> tuple[list[int], float]:
    children = node.get("children", [])
    if not isinstance(children, list):
        raise ExtractionError("children must be a list", where=f"{where}: nodes[{_short(name)}]")
    try:
        below = [owner[child] for child in children]
    except (KeyError, TypeError):  # class names instead of node ids, or unknown names
        below = [_child(c, i, name, owner, classes, where) for i, c in enumerate(children)]
    cost = node.get("cost", 1.0)
    if type(cost) is float and "subsumed" not in node:
        return below, cost
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        raise ExtractionError("cost must be a number", where=f"{where}: nodes[{_short(name)}].cost")
    if not isinstance(node.get("subsumed", False), bool):
        raise ExtractionError("subsumed must be true or false", where=f"{where}: nodes[{_short(name)}].subsumed")
    try:
        return below, math.inf if node.get("subsumed") else float(cost)
    except OverflowError:
        raise ExtractionError("cost is too large", where=f"{where}: nodes[{_short(name)}].cost") from None


def _child(child: Any, i: int, name: str, owner: Mapping[str, int], classes: Mapping[str, int], where: str) -> int:
    """The class that a child reference names: the node's class, or the class itself."""
    place = f"{where}: nodes[{_short(name)}].children[{i}]"
    text = _identifier(child, place)
    found = owner.get(text, classes.get(text))
    if found is None:
        raise ExtractionError(f"no node or class is called {_short(text)}", where=place)
    return found


def _short(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else text[:77] + "..."
