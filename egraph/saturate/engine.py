"""Drives egglog in a saturation: loads declarations and tables, runs single rounds, dumps the e-graph to arrays.

Depends only on egglog's bindings and NumPy, and knows neither ops nor rules: it runs in the worker process, where
startup time matters. All inputs and outputs are JSON and arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from .bindings import load_bindings, readable, rule_seconds
from .engine_bounds import EngineError
from .operand_ops import SEEN, Shapes

Arrays = dict[str, np.ndarray[Any, Any]]


class _Numbered(dict[Any, int]):
    """Ids of values in the order of first access."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


class Engine:
    """One e-graph in egglog: `start` loads a subgraph (block), `step` runs one round of rules and returns the e-nodes
    as arrays, `prune` drops its e-nodes."""

    def __init__(self) -> None:
        self.bindings = load_bindings()
        self.key, self.loaded, self.pruned = "", False, False
        self.declared, self.kept = set[str](), set[str]()  # rulesets and ops that exist, and those that `pop` keeps

    def start(self, job: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
        """Load one subgraph (block) into the e-graph, whose sorts and rules `declare` has declared; an earlier block is
        dropped. `job`: its nodes as tables, and limits, made by `EgglogProgram.job`. Returns ({"seconds": time taken},
        no arrays)."""
        begin = time.perf_counter()
        if self.loaded:  # `push` and `pop` restore the e-graph to the state after `declare`
            self.run("(pop)")
            met, self.declared = self.declared, set(self.kept)
            self.use(name for name in self.rules if name in met)  # later blocks are likely to need them, too
        self.use(name for name in (f"o_{table[2:]}" for table in sorted(job["tables"])) if name in self.texts)
        self.kept = set(self.declared)
        self.run("(push)")
        self.loaded, self.limit = True, int(job["nodes"])
        self.dims = {tuple(v): i for i, v in enumerate(job["dims"])}
        self.handles, self.round, self.kills = int(job["handles"]), 0, 0
        self.roots: list[int] = sorted(set(job["roots"]))
        self.own, self.steps = int(job["own"]), 0  # the graph's own handles come first; rounds run so far
        self.first: dict[Any, int] = {}  # e-class -> first round whose view contains it
        self.chosen, self.combined = list[str](), 0
        for number, sizes in enumerate(job["dims"]):
            self.run(f"(set (Attr {number}) (vec-of {' '.join(map(str, sizes))}))")
        self.tables(job["tables"])
        self.run("(run-schedule (saturate (run r_load)) (saturate (run r_shape)))")
        if self.pruned:
            self.run("(run-schedule (saturate (run r_cost)))")
        classes = _Numbered()
        nodes = self._nodes(self.egraph.freeze().functions, classes, lambda value: 0)
        self.shapes: Shapes | None = Shapes(list(self.signatures), nodes, len(classes))
        return {"seconds": time.perf_counter() - begin}, {}

    def declare(self, program: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
        """Create an e-graph with a program's declarations (`EgglogProgram.declaration`), unless already declared.

        Returns ({"seconds": time taken}, no arrays).
        """
        begin = time.perf_counter()
        if self.key != program["key"]:
            self.key, self.loaded = "", False  # unset while commands may fail: a half-declared e-graph is never reused
            self.egraph = self.bindings.EGraph()
            self.signatures: dict[str, str] = program["signatures"]
            self.needs: dict[str, list[tuple[str, list[tuple[int, str]]]]] = program["needs"]
            self.rules: dict[str, list[str]] = program["rules"]
            self.texts: dict[str, list[str]] = {**program["ops"], **program["rules"]}
            self.uses: dict[str, list[str]] = program["uses"]
            self.declared, self.kept = set(), set()
            self.pruned, self.beam = bool(program["pruned"]), bool(program["beam"])
            for line in program["commands"]:
                self.run(line)
            self.run("(ruleset r_none)")
            self.key = program["key"]
        return {"seconds": time.perf_counter() - begin}, {}

    def run(self, text: str) -> Any:
        """Run the egglog command `text`; returns egglog's report. Raises EngineError with egglog's message."""
        try:
            return self.egraph.run_program(*self.egraph.parse_program(text))
        except BaseException as error:  # egglog's panics are BaseExceptions
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise EngineError(f"{type(error).__name__}: {error} in {text[:300]}") from None

    def tables(self, tables: Mapping[str, str]) -> None:
        """Load tab-separated tables into the relations of the same names."""
        for name, text in sorted(tables.items()):
            with readable(text) as path:
                self.run(f'(input {name} "{path}")')

    def step(self) -> tuple[dict[str, Any], Arrays]:
        """Run one round: all rules once, then shapes, costs and pruning.

        Returns (statistics, arrays of the e-graph); there are no arrays if more e-nodes are live than the limit.
        """
        begin = time.perf_counter()
        report = self.run(f"(run-schedule (run {self.ready()}))")[0].report
        seconds = rule_seconds(report, time.perf_counter() - begin)
        self.run("(run-schedule (saturate (run r_shape)))")
        if self.pruned:
            self.run("(run-schedule (saturate (run r_cost)) (run r_dom) (saturate (run r_sub)))")
            self.collect()
        self.steps += 1
        live = self.live()
        header, arrays = self.view() if live <= self.limit else ({}, {})
        matches = {k: int(v) for k, v in sorted(report.num_matches_per_rule.items())}
        header |= {"live": live, "updated": bool(report.updated), "matches": matches, "rule_seconds": seconds}
        header["seconds"] = time.perf_counter() - begin
        return header, arrays

    def meet(self, pairs: Sequence[tuple[int, int]]) -> tuple[dict[str, Any], Arrays]:
        """Apply all rules once; returns (statistics, no arrays).

        `pairs`: pairs of node ids of the loaded graph. The field `equal` of the statistics is true if in every pair
        both nodes are in one e-class.
        """
        report = self.run(f"(run-schedule (run {self.every_rule()}) (saturate (run r_shape)))")[0].report
        functions = self.egraph.freeze().functions
        of = {self.egraph.value_to_i64(row.inputs[0]): row.output for row in functions["H"].rows}
        live = sum(len(functions[name].rows) for *_, name in self.constructors())
        return {"equal": all(of[a] == of[b] for a, b in pairs), "updated": bool(report.updated), "live": live}, {}

    def ready(self) -> str:
        """Name of the egglog ruleset with the rules that can match now.

        Rules whose op patterns do not occur in the e-graph are skipped. A skipped rule misses nothing: egglog tracks
        new e-nodes per rule and shows them when the rule runs again.
        """
        if self.shapes is None:
            return self.every_rule()
        stands = self.shapes.stands
        chosen = [name for name, needs in self.needs.items() if all(stands(op, inner) for op, inner in needs)]
        if not chosen:
            return "r_none"
        return self.together(chosen)

    def every_rule(self) -> str:
        """Name of the egglog ruleset with all rules."""
        return self.together(list(self.rules)) if self.rules else "r_none"

    def together(self, chosen: list[str]) -> str:
        """Name of a ruleset that combines the chosen rulesets; declares those that are not declared yet."""
        if chosen != self.chosen:
            self.use(chosen)
            self.chosen = chosen
            self.combined += 1
            self.run(f"(unstable-combined-ruleset r_ready{self.combined} {' '.join(chosen)})")
        return f"r_ready{self.combined}"

    def use(self, names: Iterable[str]) -> None:
        """Declare those rulesets and ops (by their constructors) of `names` that are not declared yet; ops of a rule
        before it."""
        key, self.key = self.key, ""  # as in `declare`
        for name in names:
            if name not in self.declared:
                self.use(self.uses.get(name, ()))
                for line in self.texts[name]:
                    self.run(line)
                self.declared.add(name)
        self.key = key

    def constructors(self) -> list[tuple[int, str, str]]:
        """The declared ops, as (index in `signatures`, op, constructor)."""
        names = [(i, name, name if name == "Leaf" else f"o_{name}") for i, name in enumerate(self.signatures)]
        return [found for found in names if found[2] == "Leaf" or found[2] in self.declared]

    def collect(self) -> None:
        """Garbage collection after a round: delete e-nodes of the round that only pruned e-nodes use; mark its other
        e-nodes as seen (so that later calls of `view` return them, too)."""
        self.round += 1
        self.run(f"(set (now) {self.round})")
        for root in self.roots:
            self.run(f"(set (reached (H {root})) {self.round})")
        self.run("(run-schedule (saturate (run r_reach)) (run r_new) (run r_gc) (run r_seen))")

    # ------------------------------------------------------------ dump
    def live(self) -> int:
        """Number of e-nodes that rules can still match (not subsumed)."""
        functions = self.egraph.freeze().functions
        return sum(not row.subsumed for *_, name in self.constructors() for row in functions[name].rows)

    def view(self) -> tuple[dict[str, Any], Arrays]:
        """Live and protected e-nodes as arrays; e-classes are numbered in order of first appearance.

        Returns ({"names": ops by index, "new_dims": size vectors that got an id}, arrays of e-nodes and of properties
        of e-classes).
        """
        functions = self.egraph.freeze().functions
        number, new_dims = _Numbered(), list[list[int]]()
        handles = [(self.egraph.value_to_i64(r.inputs[0]), r.output) for r in functions["H"].rows]
        handles.sort(key=lambda pair: pair[0])
        named = np.array([(h, number[value]) for h, value in handles], np.int64).reshape(-1, 2)
        self.handle: dict[Any, int] = {value: h for h, value in reversed(handles)}  # the first of several handles wins
        dims = self._dims(new_dims)
        arrays = {"handle": named, **self._nodes(functions, number, dims)}
        arrays |= self._facts(functions, number, dims)
        for value in number:  # merged e-classes keep the name of one of them
            self.first.setdefault(value, self.steps)
        own = {value for h, value in handles if h < self.own}
        arrays["age"] = np.array([0 if value in own else self.first[value] for value in number], np.int32)
        names = list(self.signatures)
        self.shapes = Shapes(names, arrays, len(number))
        return {"names": names, "new_dims": new_dims}, arrays

    def _dims(self, new: list[list[int]]) -> Callable[[Any], int]:
        """A function that maps size vectors to ids; new vectors are appended to `new`."""

        @cache
        def number(value: Any) -> int:
            sizes = tuple(self.egraph.value_to_i64(v) for v in self.egraph.value_to_vec(value))
            if sizes not in self.dims:
                self.dims[sizes] = len(self.dims)
                new.append(list(sizes))
                if self.beam:  # pruned e-nodes are named through tables, whose columns are integers
                    self.run(f"(set (Attr {self.dims[sizes]}) (vec-of {' '.join(map(str, sizes))}))")
            return self.dims[sizes]

        return number

    def _nodes(self, functions: Any, number: _Numbered, dims: Callable[[Any], int]) -> Arrays:
        """Op, e-class, operands and attributes of each e-node (operands and attributes in CSR form)."""
        op, cls, off, child, attr_off, attr = [], [], [0], [], [0], []
        self.rows: list[tuple[str, Any]] = []
        integer = self.egraph.value_to_i64
        for index, name, constructor in self.constructors():
            kept = self._protected(functions, name) if self.pruned else set()
            signature = self.signatures[name]
            for row in functions[constructor].rows:
                if row.subsumed and tuple(row.inputs) not in kept:
                    continue
                op.append(index)
                cls.append(number[row.output])
                for letter, value in zip(signature, row.inputs):
                    if letter == "T":
                        child.append(number[value])
                    else:
                        attr.append(dims(value) if letter == "D" else integer(value))
                off.append(len(child))
                attr_off.append(len(attr))
                self.rows.append((name, row))
        return {
            "op": np.array(op, np.int32), "cls": np.array(cls, np.int32), "off": np.array(off, np.int32),
            "child": np.array(child, np.int32), "attr_off": np.array(attr_off, np.int32), "attr": np.array(attr, np.int64),
        }  # fmt: skip

    def _facts(self, functions: Any, number: _Numbered, dims: Callable[[Any], int]) -> Arrays:
        """Shape and dtype id of each e-class (-1: unknown), and whether it depends on weights only."""
        integer = self.egraph.value_to_i64
        found: Arrays = {
            "shape": np.full(len(number), -1, np.int64),
            "dtype": np.full(len(number), -1, np.int64),
            "weight": np.zeros(len(number), np.bool_),
        }
        tables: tuple[tuple[str, str, Callable[[Any], int]], ...] = (
            ("shape", "shape", dims), ("dtype", "dt", integer), ("weight", "wk", lambda value: integer(value) == 0)
        )  # fmt: skip
        for fact, table, read in tables:
            for row in functions[table].rows:
                if row.inputs[0] in number:
                    found[fact][number[row.inputs[0]]] = read(row.output)
        return found

    def _protected(self, functions: Any, name: str) -> set[tuple[Any, ...]]:
        """Inputs of the e-nodes of an op that stay in the view even if subsumed."""
        if name == "Leaf":
            return set()
        return {tuple(r.inputs) for r in functions[f"st_{name}"].rows if self.egraph.value_to_i64(r.output) >= SEEN}

    # ------------------------------------------------------------ beam
    def prune(self, victims: Sequence[int]) -> tuple[dict[str, Any], Arrays]:
        """Subsume the e-nodes `victims`, given as indices into the arrays of the last `view`: egglog matches them no
        more, but later views contain them.

        Returns ({"pruned": number of subsumed e-nodes}, no arrays).
        """
        self.kills += 1
        named = self._name_classes({v for i in victims for v in self._classes(i)})
        tables: dict[str, list[str]] = {}
        for i in victims:
            name, row = self.rows[i]
            if not row.subsumed and all(v in named for v in self._classes(i)):
                line = "\t".join(map(str, [self.kills, *self._columns(i, named)]))
                tables.setdefault(f"k_{name}", []).append(line)
        self.tables({name: "\n".join(sorted(lines)) + "\n" for name, lines in tables.items()})
        self.run("(run-schedule (saturate (run r_kill)))")
        return {"pruned": sum(map(len, tables.values()))}, {}

    def _classes(self, i: int) -> list[Any]:
        """Operand e-classes of an e-node of the last view."""
        name, row = self.rows[i]
        return [v for letter, v in zip(self.signatures[name], row.inputs) if letter == "T"]

    def _columns(self, i: int, named: Mapping[Any, int]) -> list[int]:
        """Operand handles and attribute ids of an e-node, as columns of an input table."""
        name, row = self.rows[i]
        found = []
        for letter, v in zip(self.signatures[name], row.inputs):
            if letter == "T":
                found.append(named[v])
            elif letter == "D":
                found.append(self.dims[tuple(self.egraph.value_to_i64(x) for x in self.egraph.value_to_vec(v))])
            else:
                found.append(self.egraph.value_to_i64(v))
        return found

    def _name_classes(self, wanted: set[Any]) -> dict[Any, int]:
        """Handles for e-classes. An e-class without a handle gets one by loading one of its e-nodes, operands first."""
        named = dict(self.handle)
        if wanted <= named.keys():
            return named
        tables: dict[str, list[str]] = {}
        grown = True
        while grown:
            grown = False
            for i, (name, row) in enumerate(self.rows):
                if name != "Leaf" and row.output not in named and all(v in named for v in self._classes(i)):
                    tables.setdefault(f"h_{name}", []).append(
                        "\t".join(map(str, [self.handles, *self._columns(i, named)]))
                    )
                    named[row.output] = self.handles
                    self.handles += 1
                    grown = True
        self.tables({name: "\n".join(lines) + "\n" for name, lines in tables.items()})
        self.run("(run-schedule (saturate (run r_load)))")
        self.handle = named
        return named


__all__ = ["Arrays", "Engine", "load_bindings", "readable"]
