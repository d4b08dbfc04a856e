"""Translates attribute expressions of a rule to egglog, with the query atoms that bind their parts.

egglog has no loops over vectors: an expression that composes, inverts or extends vectors needs their lengths
(`NeedRank`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import RuleError
from ..patterns.pattern_attrs import Apply, Attr, AttrConstant, Name
from ..types.dims import DimExpr
from .language import Interner
from .vector_ranks import Key, VectorRanks

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "min": "min", "max": "max"}
_NUMBER_FUNCTIONS = {*_ARITHMETIC, "floordiv", "mod", "neg", "len", "at", "index", "rank", "size", "volume"}
_RANK_TABLES = {"ones": "OnesOf", "swap_last": "SwapLast", "identity": "IdentityOf"}
_VECTOR_FUNCTIONS = {*_RANK_TABLES, "vec", "replace", "drop", "insert", "compose", "inverse", "permuted", "shape"}


class NeedRank(Exception):
    """Raised when the length of a vector must be known to compile a rule."""

    def __init__(self, key: Key) -> None:
        self.key = key


@dataclass
class AttributeCompiler:
    """Compiler of the attribute expressions of one rule, for a given assignment of lengths.

    `rule`: name of the rule, for errors. `atoms`: the query. `kinds`: kind of each attribute variable that a left side
    binds.
    """

    rule: str
    interner: Interner
    ranks: VectorRanks
    lengths: dict[Key, int]
    atoms: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    fresh: int = 0

    def fail(self, message: str) -> RuleError:
        """The RuleError to raise, with the rule's name."""
        return RuleError(message, where=self.rule)

    def new(self, text: str, prefix: str = "t") -> str:
        """The variable of an expression; each expression is bound in the query once."""
        if text not in self.bound:
            self.fresh += 1
            self.bound[text] = f"{prefix}{self.fresh}"
            self.atoms.append(f"(= {self.bound[text]} {text})")
        return self.bound[text]

    def fact(self, function: str, name: str) -> str:
        """The variable of an e-class function (shape, dt, nel) applied to a tensor variable."""
        return self.new(f"({function} x_{name})", "f")

    def length(self, key: Key) -> int:
        """The assigned length. Raises NeedRank if it is not assigned."""
        key = self.ranks.find(key)
        if key not in self.lengths:
            raise NeedRank(key)
        return self.lengths[key]

    def constant(self, kind: str, value: Any) -> str:
        """Egglog text of a constant attribute."""
        if kind == "dims":
            return f"(vec-of {' '.join(str(int(v)) for v in value)})"
        if isinstance(value, DimExpr) or (kind == "int" and not isinstance(value, int)):
            raise self.fail(f"{value!r} is not an int")
        return str(self.interner.encode(kind, value))

    def kind_of(self, attr: Attr) -> str:
        """Kind of an attribute expression: int, dims, float, bool, str, dtype, or '' for a bare constant."""
        if isinstance(attr, Name):
            if attr.name not in self.kinds:
                raise self.fail(f"{attr.name!r} is a tensor, not an attribute")
            return self.kinds[attr.name]
        if isinstance(attr, AttrConstant):
            return "int" if type(attr.value) is int else ""
        if attr.function == "dtype":
            return "dtype"
        if attr.function in _VECTOR_FUNCTIONS:
            return "dims"
        if attr.function in _NUMBER_FUNCTIONS:
            return "int"
        raise self.fail(f"{attr.function} is a condition and cannot be part of a value")

    def expression(self, attr: Attr, kind: str) -> str:
        """Egglog text of an attribute expression of the given kind."""
        if isinstance(attr, AttrConstant):
            return self.constant(kind, attr.value)
        have = self.kind_of(attr)
        if have != kind:
            raise self.fail(f"an attribute is {have}, not {kind}")
        if isinstance(attr, Name):
            return f"a_{attr.name}"
        if attr.function == "dtype":
            return self.fact("dt", self.tensor(attr))
        return self.vector(attr) if kind == "dims" else self.number(attr)

    def tensor(self, attr: Apply) -> str:
        """The tensor variable that a function is applied to."""
        first = attr.args[0]
        if not isinstance(first, Name):
            raise self.fail(f"{attr.function} takes a tensor variable")
        return first.name

    def number(self, attr: Apply) -> str:
        """Egglog text of an integer function."""
        if attr.function == "rank":
            return f"(vec-length {self.fact('shape', self.tensor(attr))})"
        if attr.function == "volume":
            return self.fact("nel", self.tensor(attr))
        if attr.function == "size":
            return self.element(Apply("shape", attr.args[:1]), attr.args[1])
        if attr.function == "len":
            return f"(vec-length {self.expression(attr.args[0], 'dims')})"
        if attr.function == "at":
            return self.element(attr.args[0], attr.args[1])
        if attr.function == "index":
            vector, item = self.bind_vector(attr.args[0]), self.new(self.expression(attr.args[1], "int"))
            self.atoms.append(f"(vec-contains {vector} {item})")
            return _first(vector, self.static_length(attr.args[0]), item)
        args = [self.expression(a, "int") for a in attr.args]
        if attr.function == "neg":
            return f"(- 0 {args[0]})"
        if attr.function in _ARITHMETIC:
            return f"({_ARITHMETIC[attr.function]} {' '.join(args)})"
        a, b = (self.new(t) for t in args)  # egglog truncates: floor division and modulo by a positive number
        self.atoms.append(f"(< 0 {b})")
        modulo = f"(% (+ (% {a} {b}) {b}) {b})"
        return modulo if attr.function == "mod" else f"(/ (- {a} {modulo}) {b})"

    def element(self, vector: Attr, index: Attr) -> str:
        """Egglog text of a vector element; a negative constant index counts from the end."""
        if isinstance(index, AttrConstant) and index.value < 0:
            v = self.bind_vector(vector)
            return f"(vec-get {v} (- (vec-length {v}) {-index.value}))"
        return f"(vec-get {self.bind_vector(vector)} {self.expression(index, 'int')})"

    def bind_vector(self, attr: Attr) -> str:
        """The variable of a vector expression."""
        text = self.expression(attr, "dims")
        return text if text.startswith(("a_", "f", "t")) else self.new(text)

    def vector(self, attr: Apply) -> str:
        """Egglog expression for `attr`, an application of a function whose value is a vector of integers (a shape, a
        permutation), such as `replace(v, axis, n)`."""
        f, args = attr.function, attr.args
        if f == "shape":
            return self.fact("shape", self.tensor(attr))
        if f == "vec":
            return f"(vec-of {' '.join(self.expression(a, 'int') for a in args)})"
        if f in _RANK_TABLES:
            return f"({_RANK_TABLES[f]} {self.expression(args[0], 'int')})"
        v = self.bind_vector(args[0])
        if f in ("replace", "drop"):
            index = self.index(v, args[1])
            if f == "drop":
                return f"(vec-remove {v} {index})"
            return f"(vec-set {v} {index} {self.expression(args[2], 'int')})"
        if f == "insert":
            return self.insertion(v, args)
        if f == "inverse":
            n = self.static_length(args[0])
            return f"(vec-of {' '.join(_first(v, n, str(i)) for i in range(n))})"
        p, n = self.bind_vector(args[1]), self.static_length(args[1])  # compose, permuted: v indexed by p
        return f"(vec-of {' '.join(f'(vec-get {v} (vec-get {p} {i}))' for i in range(n))})"

    def index(self, vector: str, attr: Attr) -> str:
        """Egglog text of an index; a negative constant counts from the end."""
        if isinstance(attr, AttrConstant) and attr.value < 0:
            return f"(- (vec-length {vector}) {-attr.value})"
        return self.expression(attr, "int")

    def insertion(self, v: str, args: Sequence[Attr]) -> str:
        """Branch-free insert(v, i, item): element k is v[k] for i > k, the item for i == k, v[k-1] for i < k."""
        n = self.static_length(args[0])
        i, item = self.new(self.expression(args[1], "int")), self.new(self.expression(args[2], "int"))
        self.atoms += [f"(<= 0 {i})", f"(<= {i} {n})"]
        elements = []
        for k in range(n + 1):
            parts = [f"(* {_same(i, str(k))} {item})"]
            parts += [f"(* (min 1 (max 0 (- {i} {k}))) (vec-get {v} {k}))"] if k < n else []
            parts += [f"(* (min 1 (max 0 (- {k} {i}))) (vec-get {v} {k - 1}))"] if k else []
            elements.append(_sum(parts))
        return f"(vec-of {' '.join(elements)})"

    # ------------------------------------------------------------ lengths known at compile time
    def static_length(self, attr: Attr) -> int:
        """The length of a vector expression. Raises NeedRank if it depends on an unassigned rank."""
        if isinstance(attr, Name):
            return self.length(("len", attr.name))
        if isinstance(attr, AttrConstant):
            return len(attr.value)
        f, args = attr.function, attr.args
        if f == "shape":
            return self.length(("rank", self.tensor(attr)))
        if f == "vec":
            return len(args)
        if f in ("replace", "inverse"):
            return self.static_length(args[0])
        if f in ("compose", "permuted"):
            return self.static_length(args[1])
        if f in ("drop", "insert"):
            return self.static_length(args[0]) + (1 if f == "insert" else -1)
        return self.static_number(args[0])  # the tables by rank

    def static_number(self, attr: Attr) -> int:
        """An integer that is determined by the ranks."""
        if isinstance(attr, AttrConstant):
            return int(attr.value)
        if isinstance(attr, Apply):
            if attr.function == "rank":
                return self.length(("rank", self.tensor(attr)))
            if attr.function == "len":
                return self.static_length(attr.args[0])
            if attr.function in ("add", "sub"):
                a, b = (self.static_number(x) for x in attr.args)
                return a + b if attr.function == "add" else a - b
        raise self.fail("the length of a vector must follow from ranks alone")


def _sum(parts: Sequence[str]) -> str:
    text = parts[-1]
    for part in reversed(parts[:-1]):
        text = f"(+ {part} {text})"
    return text


def _same(a: str, b: str) -> str:
    """Egglog text that is 1 if two ints are equal, otherwise 0."""
    return f"(- 1 {_differ(a, b)})"


def _differ(a: str, b: str) -> str:
    return f"(min 1 (max (- {a} {b}) (- {b} {a})))"


def _first(vector: str, n: int, item: str) -> str:
    """Egglog text of the first index of an item that the vector contains: the number of prefixes without the item."""
    text = "0"
    for i in reversed(range(n)):
        text = f"(* {_differ(f'(vec-get {vector} {i})', item)} (+ 1 {text}))"
    return text


__all__ = ["AttributeCompiler", "NeedRank"]
