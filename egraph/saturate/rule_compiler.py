"""Compiles rewrite rules to egglog: patterns and guards become query atoms, right sides become actions.

Everything that can fail (index out of range, division by zero) is computed in the query, where failure means no match.
egglog has no loops over vectors, so a rule that composes, inverts or extends vectors is compiled once per rank; the
ranks come from the graph. Texts are kept for later programs of the process, which mostly have the same rules and ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..ops.ops import OPS, Op
from ..patterns.pattern import Literal, Term, Var, subterms
from ..patterns.pattern_attrs import Apply, Attr, AttrConstant, Name
from ..patterns.rule import Rule
from .applicable_rules import rule_ops
from .attribute_compiler import AttributeCompiler, NeedRank
from .language import FIRST_FLOAT, RUN, STATUS_PROTECTED, Interner
from .vector_ranks import Key, VectorRanks


class _Compiler:
    """Compiler of one direction of one rule for a given assignment of lengths."""

    def __init__(
        self, rule: Rule, interner: Interner, ranks: VectorRanks, lengths: dict[Key, int], guarded: bool
    ) -> None:
        self.rule, self.interner, self.guarded = rule, interner, guarded
        self.attributes = AttributeCompiler(rule.name, interner, ranks, lengths)
        # computed attributes of left sides, as (variable, kind, expression), checked after all variables are bound
        self.later: list[tuple[str, str, Attr]] = []

    # ------------------------------------------------------------ left sides
    def match(self, term: Term) -> str:
        """Add query atoms for a left side; returns the variable of its e-class."""
        if isinstance(term, Var):
            return f"x_{term.name}"
        self.attributes.fresh += 1
        root = f"e{self.attributes.fresh}"
        if isinstance(term, Literal):
            value = self.interner.encode("float", term.value)
            self.attributes.atoms += [
                f"(= {root} (o_full {value} s{self.attributes.fresh} d{self.attributes.fresh}))",
                f"(Ones s{self.attributes.fresh})",
            ]
            return root
        spot = len(self.attributes.atoms)
        args = [self.match(a) for a in term.args]
        args += [self.match_attr(term.op, name, attr) for name, attr in term.attrs]
        self.attributes.atoms.insert(spot, f"(= {root} {' '.join([f'(o_{term.op}', *args])}))")
        return root

    def match_attr(self, op: str, name: str, attr: Attr) -> str:
        """An attribute in a left side: a variable, a constant, or a fresh variable that must equal a computed value."""
        kind = OPS[op].attrs[name]
        if isinstance(attr, Name):
            if self.attributes.kinds.setdefault(attr.name, kind) != kind:
                raise self.attributes.fail(
                    f"attribute variable {attr.name!r} is both {self.attributes.kinds[attr.name]} and {kind}"
                )
            return f"a_{attr.name}"
        if isinstance(attr, AttrConstant):
            return self.attributes.constant(kind, attr.value)
        self.attributes.fresh += 1
        self.later.append((f"q{self.attributes.fresh}", kind, attr))
        return f"q{self.attributes.fresh}"

    # ------------------------------------------------------------ guards
    def guard(self, attr: Attr) -> None:
        """Add query atoms for a guard."""
        if not isinstance(attr, Apply):
            raise self.attributes.fail("a guard must be a condition")
        f = attr.function
        if f in ("eq", "ne", "lt", "le"):
            kind = next((k for k in map(self.attributes.kind_of, attr.args) if k), "int")
            if f in ("lt", "le") and kind != "int":
                raise self.attributes.fail(f"only ints can be ordered, not {kind}")
            a, b = (self.attributes.expression(x, kind) for x in attr.args)
            self.attributes.atoms.append(f"({ {'eq': '=', 'ne': '!=', 'lt': '<', 'le': '<='}[f] } {a} {b})")
        elif f == "contains":
            self.attributes.atoms.append(
                f"(vec-contains {self.attributes.bind_vector(attr.args[0])} {self.attributes.expression(attr.args[1], 'int')})"
            )
        elif f in ("weight", "active"):
            self.attributes.atoms.append(f"(= {int(f == 'active')} (wk x_{self.attributes.tensor(attr)}))")
        elif f == "scalar":
            self.attributes.atoms.append(f"(Ones {self.attributes.fact('shape', self.attributes.tensor(attr))})")
        elif f == "floating":
            self.attributes.atoms.append(
                f"(<= {FIRST_FLOAT} {self.attributes.fact('dt', self.attributes.tensor(attr))})"
            )
        elif f == "fits":
            self.fits(*(a.name if isinstance(a, Name) else "" for a in attr.args))
        elif f in ("chained", "original"):
            self.attributes.atoms.append(f"({'last' if f == 'chained' else 'wid'} x_{self.attributes.tensor(attr)})")
        elif f == "ordered":
            names = [f"x_{a.name}" if isinstance(a, Name) else "" for a in attr.args]
            first, second = names[-2:]
            atom = f"(< (last {first}) (wid {second}))"
            self.attributes.atoms.append(
                atom if len(names) == 2 else f"(= (after {names[0]} (last {first})) (wid {second}))"
            )
            if len(names) == 3:  # a chain longer than RUN may grow only if it starts with the first weight
                beyond = f"(max 0 (- (links {first}) {RUN - 1}))"
                self.attributes.atoms.append(f"(= 0 (* {beyond} (- (start {first}) (least {names[0]}))))")
        else:
            raise self.attributes.fail(f"{f} is not a condition")

    def fits(self, small: str, large: str) -> None:
        """Add query atoms: each size of one shape is 1 or the size of the other."""
        n, a, b = (
            self.attributes.length(("rank", small)),
            self.attributes.fact("shape", small),
            self.attributes.fact("shape", large),
        )
        self.attributes.atoms.append(f"(= {n} (vec-length {b}))")
        for i in range(n):
            p, q = f"(vec-get {a} {i})", f"(vec-get {b} {i})"
            self.attributes.atoms.append(f"(= 0 (* (- {p} 1) (- {p} {q})))")

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
            ones = self.attributes.new(f"(OnesOf {rank})")
            return f"(o_full {self.interner.encode('float', term.value)} {ones} {dtype})"
        # not the condition of `where`
        sibling = next((a for a in reversed(term.args) if not isinstance(a, Literal)), None)
        args = [self.make(a, made, sibling) for a in term.args]
        for name, attr in term.attrs:
            text = self.attributes.expression(attr, OPS[term.op].attrs[name])
            args.append(self.attributes.new(text) if text.startswith("(") else text)
        joined = " ".join(args)
        if self.guarded and self.rule.keep:
            made.append(f"(set (st_{term.op} {joined}) {STATUS_PROTECTED})")
        return f"(o_{term.op} {joined})"

    def rank(self, term: Term) -> str:
        """Egglog text of the rank of a term."""
        if isinstance(term, Var):
            return f"(vec-length {self.attributes.fact('shape', term.name)})"
        if isinstance(term, Literal):
            return "0"
        if "shape" in dict(term.attrs):
            return f"(vec-length {self.attributes.bind_vector(dict(term.attrs)['shape'])})"
        first = next((a for a in term.args if not isinstance(a, Literal)), None)
        if first is None:
            return "0"
        if term.op == "gather":
            return f"(- (+ {self.rank(term.args[0])} {self.rank(term.args[1])}) 1)"
        return f"(+ {self.rank(first)} 1)" if term.op == "windows" else self.rank(first)

    def dtype(self, term: Term) -> str:
        """Egglog text of the dtype of a term."""
        if isinstance(term, Var):
            return self.attributes.fact("dt", term.name)
        if isinstance(term, Literal):
            return str(FIRST_FLOAT + 2)
        attrs, law = dict(term.attrs), OPS[term.op].law
        if "dtype" in attrs:
            return self.attributes.expression(attrs["dtype"], "dtype")
        if law in ("compare", "arg_reduce", "along_index"):
            return str(self.interner.encode("dtype", "bool" if law == "compare" else "int64"))
        args = term.args[1:] if law == "where" else term.args
        first = next((a for a in args if not isinstance(a, Literal)), None)
        return str(FIRST_FLOAT + 2) if first is None else self.dtype(first)

    # ------------------------------------------------------------ the whole rule
    def text(self) -> str:
        """The rule as one egglog command, up to its options."""
        roots = [self.match(t) for t in self.rule.lefts]
        for key, n in self.attributes.lengths.items():
            vector = f"a_{key[1]}" if key[0] == "len" else self.attributes.fact("shape", key[1])
            self.attributes.atoms.append(f"(= {n} (vec-length {vector}))")
        for variable, kind, attr in self.later:
            self.attributes.atoms.append(f"(= {variable} {self.attributes.expression(attr, kind)})")
        for guard in self.rule.guards:
            self.guard(guard)
        # weight-only terms are folded at load and cost nothing in any form
        if self.guarded and self.rule.growth != "collects":
            self.attributes.atoms += [f"(= 1 (wk {root}))" for root in roots]
        made: list[str] = []
        actions = [f"(union {root} {self.make(right, made)})" for root, right in zip(roots, self.rule.rights)]
        query, action = " ".join(self.attributes.atoms), " ".join([*actions, *dict.fromkeys(made)])
        return f"(rule ({query}) ({action})"


class _Recorder(Interner):
    """An interner that passes values on to another one and records their ids."""

    def __init__(self, interner: Interner) -> None:
        super().__init__()
        self.interner = interner
        self.ids: list[tuple[str, Any, int]] = []  # kind, value, id

    def encode(self, kind: str, value: Any) -> int:
        self.ids.append((kind, value, self.interner.encode(kind, value)))
        return self.ids[-1][-1]


@dataclass(frozen=True)
class _Compiled:
    """The egglog commands of one rule, valid while nothing they were made from has changed.

    `texts`: command by rule name. `ops`: the entry of each op that they were made from. `ids`: (kind, value, number) of
    the rule's constants; the texts contain the numbers.
    """

    texts: dict[str, str]
    ops: dict[str, Op | None]
    ids: list[tuple[str, Any, int]]

    def valid(self, interner: Interner) -> bool:
        """Whether compiling again gives the same texts; interns the rule's values, as compiling does."""
        same = [interner.encode(kind, value) == number for kind, value, number in self.ids]
        return all(same) and all(OPS.get(op) is entry for op, entry in self.ops.items())


KEPT = 4  # texts of a rule for some ranks: the ids of its values may differ from program to program


@lru_cache(maxsize=4096)
def _kept(rule: Rule, ranks: tuple[int, ...], guarded: bool) -> list[_Compiled]:
    """What a rule was compiled to for these ranks, the latest first."""
    return []


def _compiled(rule: Rule, interner: Interner, ranks: Sequence[int], guarded: bool) -> _Compiled:
    """Compile a rule; arguments as of `compile_rule`."""
    waiting: list[dict[Key, int]] = [{}]
    shared, recorder, texts = VectorRanks(rule.lefts), _Recorder(interner), dict[str, str]()
    while waiting:
        lengths = waiting.pop()
        try:
            text = _Compiler(rule, recorder, shared, lengths, guarded).text()
        except NeedRank as need:
            waiting += [{**lengths, need.key: r} for r in reversed(ranks)]
            continue
        texts[rule.name + "".join(f"@{n}" for n in lengths.values())] = text
    ops = {op: OPS.get(op) for side in rule_ops(rule) for op in side}
    return _Compiled(texts, ops, recorder.ids)


def compile_rule(
    rule: Rule, interner: Interner, ranks: Sequence[int], *, guarded: bool, ruleset: str = "r_rules"
) -> list[tuple[str, str]]:
    """Egglog form of a one-directional rule, as (name, command) pairs: one per rank if vectors must be expanded.

    `ranks`: ranks of values that may occur. `guarded`: whether created e-nodes are subject to pruning. `ruleset`: the
    egglog ruleset that the commands add to. Raises RuleError if the rule cannot be expressed.
    """
    kept = _kept(rule, tuple(ranks), guarded)
    found = next((one for one in tuple(kept) if one.valid(interner)), None)
    if found is None:
        found = _compiled(rule, interner, ranks, guarded)
        kept[:] = [found, *kept[: KEPT - 1]]
    return [(name, f'{text} :ruleset {ruleset} :name "{name}")') for name, text in found.texts.items()]


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
