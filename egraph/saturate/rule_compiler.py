"""Compiles rewrite rules to egglog: patterns and guards become query atoms, right sides become actions.

Everything that can fail (index out of range, division by zero) is computed in the query, where failure means no match.
egglog has no loops over vectors, so a rule that composes, inverts or extends vectors is compiled once per rank; the
ranks come from the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import RuleError
from ..ops.ops import OPS
from ..patterns.pattern import Literal, Term, Var, subterms
from ..patterns.pattern_attrs import Apply, Attr, AttrConstant, Name
from ..patterns.rule import Rule
from ..types.dims import DimExpr
from .language import FIRST_FLOAT, RUN, STATUS_PROTECTED, Interner
from .vector_ranks import Key, VectorRanks

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "min": "min", "max": "max"}
_NUMBER_FUNCTIONS = {*_ARITHMETIC, "floordiv", "mod", "neg", "len", "at", "index", "rank", "size", "volume"}
_RANK_TABLES = {"ones": "OnesOf", "swap_last": "SwapLast", "identity": "IdentityOf"}
_VECTOR_FUNCTIONS = {*_RANK_TABLES, "vec", "replace", "drop", "insert", "compose", "inverse", "permuted", "shape"}


class _NeedRank(Exception):
    """Raised when the length of a vector must be known to compile a rule."""

    def __init__(self, key: Key) -> None:
        self.key = key


@dataclass
class _Compiler:
    """Compiler of one direction of one rule for a given assignment of lengths."""

    rule: Rule
    interner: Interner
    ranks: VectorRanks
    lengths: dict[Key, int]
    guarded: bool
    atoms: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    fresh: int = 0

    # ------------------------------------------------------------ small helpers
    def fail(self, message: str) -> RuleError:
        """The RuleError to raise, with the rule's name."""
        return RuleError(message, where=self.rule.name)

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
        """The assigned length. Raises _NeedRank if it is not assigned."""
        key = self.ranks.find(key)
        if key not in self.lengths:
            raise _NeedRank(key)
        return self.lengths[key]

    # ------------------------------------------------------------ left sides
    def match(self, term: Term) -> str:
        """Add query atoms for a left side; returns the variable of its e-class."""
        if isinstance(term, Var):
            return f"x_{term.name}"
        self.fresh += 1
        root = f"e{self.fresh}"
        if isinstance(term, Literal):
            value = self.interner.encode("float", term.value)
            self.atoms += [f"(= {root} (o_full {value} s{self.fresh} d{self.fresh}))", f"(Ones s{self.fresh})"]
            return root
        spot = len(self.atoms)
        args = [self.match(a) for a in term.args]
        args += [self.match_attr(term.op, name, attr) for name, attr in term.attrs]
        self.atoms.insert(spot, f"(= {root} {' '.join([f'(o_{term.op}', *args])}))")
        return root

    def match_attr(self, op: str, name: str, attr: Attr) -> str:
        """An attribute in a left side: a variable, a constant, or a fresh variable that must equal a computed value."""
        kind = OPS[op].attrs[name]
        if isinstance(attr, Name):
            if self.kinds.setdefault(attr.name, kind) != kind:
                raise self.fail(f"attribute variable {attr.name!r} is both {self.kinds[attr.name]} and {kind}")
            return f"a_{attr.name}"
        if isinstance(attr, AttrConstant):
            return self.constant(kind, attr.value)
        self.fresh += 1
        self.later.append((f"q{self.fresh}", kind, attr))
        return f"q{self.fresh}"

    @property
    def later(self) -> list[tuple[str, str, Attr]]:
        """Computed attributes of left sides, as (variable, kind, expression), checked after all variables are bound."""
        return self.__dict__.setdefault("_later", [])  # type: ignore[no-any-return]

    def constant(self, kind: str, value: Any) -> str:
        """Egglog text of a constant attribute."""
        if kind == "dims":
            return f"(vec-of {' '.join(str(int(v)) for v in value)})"
        if isinstance(value, DimExpr) or (kind == "int" and not isinstance(value, int)):
            raise self.fail(f"{value!r} is not an int")
        return str(self.interner.encode(kind, value))

    # ------------------------------------------------------------ attribute expressions
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
        """Egglog text of a vector function."""
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
        """The length of a vector expression. Raises _NeedRank if it depends on an unassigned rank."""
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

    # ------------------------------------------------------------ guards
    def guard(self, attr: Attr) -> None:
        """Add query atoms for a guard."""
        if not isinstance(attr, Apply):
            raise self.fail("a guard must be a condition")
        f = attr.function
        if f in ("eq", "ne", "lt", "le"):
            kind = next((k for k in map(self.kind_of, attr.args) if k), "int")
            if f in ("lt", "le") and kind != "int":
                raise self.fail(f"only ints can be ordered, not {kind}")
            a, b = (self.expression(x, kind) for x in attr.args)
            self.atoms.append(f"({ {'eq': '=', 'ne': '!=', 'lt': '<', 'le': '<='}[f] } {a} {b})")
        elif f == "contains":
            self.atoms.append(f"(vec-contains {self.bind_vector(attr.args[0])} {self.expression(attr.args[1], 'int')})")
        elif f in ("weight", "active"):
            self.atoms.append(f"(= {int(f == 'active')} (wk x_{self.tensor(attr)}))")
        elif f == "scalar":
            self.atoms.append(f"(Ones {self.fact('shape', self.tensor(attr))})")
        elif f == "floating":
            self.atoms.append(f"(<= {FIRST_FLOAT} {self.fact('dt', self.tensor(attr))})")
        elif f == "fits":
            self.fits(*(a.name if isinstance(a, Name) else "" for a in attr.args))
        elif f in ("chained", "original"):
            self.atoms.append(f"({'last' if f == 'chained' else 'wid'} x_{self.tensor(attr)})")
        elif f == "ordered":
            names = [f"x_{a.name}" if isinstance(a, Name) else "" for a in attr.args]
            first, second = names[-2:]
            atom = f"(< (last {first}) (wid {second}))"
            self.atoms.append(atom if len(names) == 2 else f"(= (after {names[0]} (last {first})) (wid {second}))")
            if len(names) == 3:  # a chain longer than RUN may grow only if it starts with the first weight
                beyond = f"(max 0 (- (links {first}) {RUN - 1}))"
                self.atoms.append(f"(= 0 (* {beyond} (- (start {first}) (least {names[0]}))))")
        else:
            raise self.fail(f"{f} is not a condition")

    def fits(self, small: str, large: str) -> None:
        """Add query atoms: each size of one shape is 1 or the size of the other."""
        n, a, b = self.length(("rank", small)), self.fact("shape", small), self.fact("shape", large)
        self.atoms.append(f"(= {n} (vec-length {b}))")
        for i in range(n):
            p, q = f"(vec-get {a} {i})", f"(vec-get {b} {i})"
            self.atoms.append(f"(= 0 (* (- {p} 1) (- {p} {q})))")

    # ------------------------------------------------------------ right sides
    def make(self, term: Term, made: list[str], like: Term | None = None) -> str:
        """Egglog text of a right side.

        `made` collects commands that set the status of created e-nodes. `like` gives rank and dtype of a bare number.
        """
        if isinstance(term, Var):
            return f"x_{term.name}"
        if isinstance(term, Literal):
            source = Var(term.like) if term.like else like
            rank, dtype = ("0", str(FIRST_FLOAT + 2)) if source is None else (self.rank(source), self.dtype(source))
            ones = self.new(f"(OnesOf {rank})")
            return f"(o_full {self.interner.encode('float', term.value)} {ones} {dtype})"
        # not the condition of `where`
        sibling = next((a for a in reversed(term.args) if not isinstance(a, Literal)), None)
        args = [self.make(a, made, sibling) for a in term.args]
        for name, attr in term.attrs:
            text = self.expression(attr, OPS[term.op].attrs[name])
            args.append(self.new(text) if text.startswith("(") else text)
        joined = " ".join(args)
        if self.guarded and self.rule.keep:
            made.append(f"(set (st_{term.op} {joined}) {STATUS_PROTECTED})")
        return f"(o_{term.op} {joined})"

    def rank(self, term: Term) -> str:
        """Egglog text of the rank of a term."""
        if isinstance(term, Var):
            return f"(vec-length {self.fact('shape', term.name)})"
        if isinstance(term, Literal):
            return "0"
        if "shape" in dict(term.attrs):
            return f"(vec-length {self.bind_vector(dict(term.attrs)['shape'])})"
        first = next((a for a in term.args if not isinstance(a, Literal)), None)
        if first is None:
            return "0"
        if term.op == "gather":
            return f"(- (+ {self.rank(term.args[0])} {self.rank(term.args[1])}) 1)"
        return f"(+ {self.rank(first)} 1)" if term.op == "windows" else self.rank(first)

    def dtype(self, term: Term) -> str:
        """Egglog text of the dtype of a term."""
        if isinstance(term, Var):
            return self.fact("dt", term.name)
        if isinstance(term, Literal):
            return str(FIRST_FLOAT + 2)
        attrs, law = dict(term.attrs), OPS[term.op].law
        if "dtype" in attrs:
            return self.expression(attrs["dtype"], "dtype")
        if law in ("compare", "arg_reduce", "along_index"):
            return str(self.interner.encode("dtype", "bool" if law == "compare" else "int64"))
        args = term.args[1:] if law == "where" else term.args
        first = next((a for a in args if not isinstance(a, Literal)), None)
        return str(FIRST_FLOAT + 2) if first is None else self.dtype(first)

    # ------------------------------------------------------------ the whole rule
    def text(self, name: str, ruleset: str) -> str:
        """The rule as one egglog command."""
        roots = [self.match(t) for t in self.rule.lefts]
        for key, n in self.lengths.items():
            vector = f"a_{key[1]}" if key[0] == "len" else self.fact("shape", key[1])
            self.atoms.append(f"(= {n} (vec-length {vector}))")
        for variable, kind, attr in self.later:
            self.atoms.append(f"(= {variable} {self.expression(attr, kind)})")
        for guard in self.rule.guards:
            self.guard(guard)
        # weight-only terms are folded at load and cost nothing in any form
        if self.guarded and self.rule.growth != "collects":
            self.atoms += [f"(= 1 (wk {root}))" for root in roots]
        made: list[str] = []
        actions = [f"(union {root} {self.make(right, made)})" for root, right in zip(roots, self.rule.rights)]
        query, action = " ".join(self.atoms), " ".join([*actions, *dict.fromkeys(made)])
        return f'(rule ({query}) ({action}) :ruleset {ruleset} :name "{name}")'


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


def compile_rule(
    rule: Rule, interner: Interner, ranks: Sequence[int], *, guarded: bool, ruleset: str = "r_rules"
) -> Iterator[tuple[str, str]]:
    """Egglog form of a one-directional rule, as (name, command) pairs: one per rank if vectors must be expanded.

    `ranks`: ranks of values that may occur. `guarded`: whether created e-nodes are subject to pruning. `ruleset`: the
    egglog ruleset that the commands add to. Raises RuleError if the rule cannot be expressed.
    """
    waiting: list[dict[Key, int]] = [{}]
    shared = VectorRanks(rule.lefts)
    while waiting:
        lengths = waiting.pop()
        suffix = "".join(f"@{n}" for n in lengths.values())
        name = rule.name + suffix
        try:
            text = _Compiler(rule, interner, shared, lengths, guarded).text(name, ruleset)
        except _NeedRank as need:
            waiting += [{**lengths, need.key: r} for r in reversed(ranks)]
            continue
        yield name, text


def collect_constants(rules: Iterable[Rule], interner: Interner) -> list[float]:
    """Intern the scalar constants of the rules' left sides and return them without duplicates.

    A graph's constant that equals one of these up to rounding gets its id (see `lower`).
    """
    found: list[float] = []
    for rule in rules:
        for term in (t for side in rule.lefts for t in subterms(side)):
            if isinstance(term, Literal):
                interner.encode("float", term.value)
                found.append(term.value)
    return list(dict.fromkeys(found))


__all__ = ["collect_constants", "compile_rule"]
