"""Parses TASO's and Tensat's substitution languages: rules as text, one per line or two lines per rule.

    (matmul 0 ?a (concat 1 2 ?b ?c))=>(concat 1 2 (matmul 0 ?a ?b) (matmul 0 ?a ?c))      S-expressions, one-way
    matmul(a,concat(1,b,c))==concat(1,matmul(a,b),matmul(a,c))                            calls, two-way

Equations may follow one another without a separator. In a file of pairs, two consecutive S-expression lines form one
multi-pattern rule: both left sides must match at once, and each equals its right side. `?x` in the position of a
parameter (a stride, an axis, an activation) is a parameter variable. The semantics of the operators are in
`text/shapes.py`, which yields a rule's sides as tensors at concrete shapes.

`SIGNATURES` lists the signatures of each operator: the slot `.` is a tensor, `:` a scalar tensor or a number, and a
name is a parameter. The signature is chosen by the number of arguments and by the positions of numbers: `(enlarge KH KW
W)` is TASO's, `(enlarge W LIKE)` is Tensat's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import RuleError
from .text_rule import Input, Number, Param, Term, TextApply, TextRule

_WINDOW = "kernel_h kernel_w stride_h stride_w pad"
_POOL = (f"{_WINDOW} .", f". {_WINDOW}", f". {_WINDOW} act", f"{_WINDOW} act .")
SIGNATURES: dict[str, tuple[str, ...]] = {
    "matmul": ("act . .", ". ."),
    "conv2d": ("stride_h stride_w pad act . .",),
    "concat": ("axis ndim . .", "axis . ."),
    "concat3": ("axis ndim . . .",),
    "concat4": ("axis ndim . . . .",),
    "concat5": ("axis ndim . . . . .",),
    "split": ("axis .",),
    "split_0": (".", "axis ."),
    "split_1": (".", "axis ."),
    "ewadd": (". .",),
    "ewmul": (". .",),
    "smul": (". :",),
    "relu": (".",),
    "tanh": (".",),
    "sigmoid": (".",),
    "transpose": (".", ". perm shuffle", ". perm", "perm ."),
    "poolmax": _POOL,
    "poolavg": _POOL,
    "enlarge": ("kernel_h kernel_w .", ". ."),
    "merge": (". count", "count ."),
    "reshape": (". shape", "shape ."),
    "batchnorm": (". . . . .",),
    "noop": (". .",),
    "Iconv": ("kernel_h kernel_w",),
    "Cpool": ("kernel_h kernel_w",),
    "Imatmul": ("",),
    "Iewmul": ("",),
}
ALIASES = {
    "conv": "conv2d", "scalar_mul": "smul", "scalar_mul_0": "smul", "merge_gconv": "merge", "maxpool": "poolmax",
    "pool2d_max": "poolmax", "avgpool": "poolavg", "pool2d_avg": "poolavg", "const_iconv": "Iconv", "iconv": "Iconv",
    "const_pool": "Cpool", "cpool": "Cpool", "const_imm": "Imatmul", "imatmul": "Imatmul", "const_one": "Iewmul",
    "iewmul": "Iewmul", "concat2": "concat",
}  # fmt: skip
CONSTANTS = ("Iconv", "Cpool", "Imatmul", "Iewmul")
#: Allowed values of each parameter; None: any integer from 0 on (from 1 for `POSITIVE`). `VECTOR` parameters are
#: written d1_d2… or as a number.
VECTOR = ("perm", "shape")
RANGES: dict[str, tuple[int, ...] | None] = {
    "act": (0, 1, 2, 3), "pad": (0, 1), "shuffle": (0, 1), "axis": None, "ndim": None, "stride_h": None,
    "stride_w": None, "kernel_h": None, "kernel_w": None, "count": None,
}  # fmt: skip
POSITIVE = ("stride_h", "stride_w", "kernel_h", "kernel_w", "count", "ndim")


# ---------------------------------------------------------------- tokens
_TOKEN = re.compile(r"\s*(=>|==|[(),]|[^\s(),=]+)")
_INT, _REAL, _VECTOR = re.compile(r"-?\d+"), re.compile(r"-?\d+\.\d*(e-?\d+)?"), re.compile(r"\d+(_\d+)+")
_NAME = re.compile(r"\??[A-Za-z_][A-Za-z0-9_]*")
_GLUED = re.compile(r"\b(input_\d+|Imatmul|Iewmul)(?=[A-Za-z])")
DEPTH = 200


class _Unknown(Exception):
    """Raised for a well-formed rule with an unknown operator or parameter value."""


@dataclass
class _Raw:
    """A parsed term before resolution: a head with arguments (None for an atom)."""

    head: str
    args: list[_Raw] | None = field(default=None)


class _Reader:
    """Tokenizer and recursive-descent parser for one line."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.line, self.at = text, line, 0
        if "==" in text:
            text = _GLUED.sub(r"\1 ", text)  # separates a side that is a bare variable from the next equation
        self.tokens: list[str] = []
        end = 0
        for m in _TOKEN.finditer(text):
            if m.start() != end:
                break
            self.tokens.append(m.group(1))
            end = m.end()
        if text[end:].strip():
            raise self.error(f"cannot read {text[end:].strip()[:20]!r}")

    def error(self, message: str) -> RuleError:
        """A RuleError that names the line."""
        shown = self.text if len(self.text) <= 160 else self.text[:157] + "..."
        return RuleError(f"line {self.line}: {message}", where=shown, hint="a rule is LHS=>RHS or lhs(…)==rhs(…)")

    @property
    def more(self) -> bool:
        """Whether the text has tokens that are not read yet."""
        return self.at < len(self.tokens)

    def peek(self) -> str:
        """The next token, or '' at the end."""
        return self.tokens[self.at] if self.more else ""

    def next(self) -> str:
        """Consumes and returns a token."""
        if not self.more:
            raise self.error("the rule ends in the middle of a term")
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, token: str) -> None:
        """Consumes a token that must be this one."""
        found = self.next()
        if found != token:
            raise self.error(f"{found!r} where {token!r} was expected")

    def term(self, depth: int = 0) -> _Raw:
        """Parses a term in either style."""
        if depth > DEPTH:
            raise self.error(f"terms are nested more than {DEPTH} deep")
        token = self.next()
        if token == "(":
            head, args = self.next(), []
            if not _NAME.fullmatch(head) or head.startswith("?"):
                raise self.error(f"{head!r} is not the name of an operator")
            while self.peek() != ")":
                args.append(self.term(depth + 1))
            self.expect(")")
            return _Raw(head, args)
        if not any(p.fullmatch(token) for p in (_NAME, _INT, _REAL, _VECTOR)):
            raise self.error(f"{token!r} is neither a name nor a number")
        if self.peek() == "(" and _NAME.fullmatch(token) and not token.startswith("?") and self.calls:
            self.next()
            args = [self.term(depth + 1)] if self.peek() != ")" else []
            while args and self.peek() != ")":
                self.expect(",")
                args.append(self.term(depth + 1))
            self.expect(")")
            return _Raw(token, args)
        return _Raw(token)

    @property
    def calls(self) -> bool:
        """Whether the line is written in call style, where `name (` begins a call; in S-expressions it is an atom and a
        list."""
        return "==" in self.tokens


# ---------------------------------------------------------------- resolution
def _resolved(raw: _Raw, reader: _Reader) -> Term:
    """The resolved term. Raises _Unknown for an unknown operator, or one with unexpected arguments."""
    if raw.args is None:
        return _atom(raw.head, reader)
    op = ALIASES.get(raw.head, raw.head)
    if op not in SIGNATURES:
        raise _Unknown(f"no operator is called {raw.head!r}")
    for form in SIGNATURES[op]:
        slots = form.split()
        if len(slots) == len(raw.args) and all(_suits(s, a) for s, a in zip(slots, raw.args)):
            return _applied(op, slots, raw, reader)
    forms = " or ".join(f"({op}{' ' + f if f else ''})" for f in SIGNATURES[op])
    raise _Unknown(f"{op} is written {forms}, with . for a tensor")


def _atom(head: str, reader: _Reader) -> Term:
    op = ALIASES.get(head, head)
    if op in ("Imatmul", "Iewmul"):
        return TextApply(op, (), ())
    if _INT.fullmatch(head) or _REAL.fullmatch(head):
        return Number(float(head))
    if not _NAME.fullmatch(head):
        raise reader.error(f"{head!r} where a tensor was expected")
    return Input(head.lstrip("?"))


def _suits(slot: str, raw: _Raw) -> bool:
    number = raw.args is None and bool(_INT.fullmatch(raw.head) or _REAL.fullmatch(raw.head))
    if slot == ".":
        return not number and not (raw.args is None and _VECTOR.fullmatch(raw.head))
    if slot == ":":
        return raw.args is not None or not _VECTOR.fullmatch(raw.head)
    if raw.args is not None:
        return False
    return bool(
        _INT.fullmatch(raw.head) or _NAME.fullmatch(raw.head) or (slot in VECTOR and _VECTOR.fullmatch(raw.head))
    )


def _applied(op: str, slots: Sequence[str], raw: _Raw, reader: _Reader) -> Term:
    assert raw.args is not None
    params = tuple((s, _param(s, a.head)) for s, a in zip(slots, raw.args) if s not in ".:")
    args = tuple(_resolved(a, reader) for s, a in zip(slots, raw.args) if s in ".:")
    if op in ("split_0", "split_1") and not params:  # (split_0 (split AXIS T)): one operator that yields one half
        pair = args[0]
        if not isinstance(pair, TextApply) or pair.op != "split":
            raise _Unknown(f"{op} takes a half of a (split AXIS T)")
        params, args = pair.params, pair.args
    if any(isinstance(a, TextApply) and a.op == "split" for a in args):
        raise _Unknown(f"{op} of both halves of a split")
    if any(isinstance(a, TextApply) and a.op == "noop" for a in args) and op != "noop":
        raise _Unknown(f"{op} of a noop, which has no value")
    return TextApply("concat" if op.startswith("concat") else op, params, args)


def _param(slot: str, head: str) -> Param:
    if _VECTOR.fullmatch(head):
        return tuple(map(int, head.split("_")))
    if not _INT.fullmatch(head):
        return head.lstrip("?")
    value = int(head)
    allowed = RANGES.get(slot)
    if value < (slot in POSITIVE) or value > 1 << 16 or (allowed is not None and value not in allowed):
        raise _Unknown(f"{slot} has no value {value}")
    return value


def _outputs(term: Term) -> list[Term]:
    """The output terms of a side: a noop combines several."""
    if isinstance(term, TextApply) and term.op == "noop":
        return [o for a in term.args for o in _outputs(a)]
    return [term]


def _rule(reader: _Reader, left: _Raw, right: _Raw, both: bool) -> TextRule:
    text = reader.text.strip() if not both else _spelled(left) + "==" + _spelled(right)
    try:
        lefts, rights = _outputs(_resolved(left, reader)), _outputs(_resolved(right, reader))
    except _Unknown as unknown:
        return TextRule(text, reader.line, both=both, problem=str(unknown))
    rule = TextRule(text, reader.line, tuple(lefts), tuple(rights), both)
    problem = ""
    if len(lefts) != len(rights):
        problem = f"{len(lefts)} outputs on the left, {len(rights)} on the right"
    elif any(isinstance(t, Number) or (isinstance(t, TextApply) and t.op == "split") for t in (*lefts, *rights)):
        problem = "a side is a number or both halves of a split"
    elif clash := sorted(set(rule.inputs) & set(rule.attributes)):
        problem = f"{', '.join(clash)} stand for tensors and for parameters"
    return TextRule(text, reader.line, both=both, problem=problem) if problem else rule


def _spelled(raw: _Raw) -> str:
    return raw.head if raw.args is None else f"{raw.head}({','.join(map(_spelled, raw.args))})"


# ---------------------------------------------------------------- files
def is_text(line: str) -> bool:
    """Whether a line of a rule file is in TASO's or Tensat's language rather than the pattern language
    (egraph/patterns/pattern_parser.py)."""
    text = line.strip()
    if "?" in text:
        return True
    if "=>" not in text and "->" not in text:
        return True  # equations, or text that is not a rule in any language
    head = re.match(r"\(\s*([A-Za-z_]\w*)(?:\s+[\w(]|\s*\))", text)
    atom = re.match(r"(Imatmul|Iewmul)\s*=>", text)
    return bool(atom) or (head is not None and ALIASES.get(head.group(1), head.group(1)) in SIGNATURES)


def blank(line: str) -> bool:
    """Whether a line has no rule: empty, or a comment that begins with `#`."""
    return not line.strip() or line.lstrip().startswith("#")


def parse_line(text: str, line: int) -> list[TextRule]:
    """The rules of one line: one `LHS=>RHS`, or any number of equations. Raises RuleError if it is malformed."""
    reader = _Reader(text, line)
    arrow = "==" if reader.calls else "=>"
    found = []
    while True:
        left = reader.term()
        if reader.peek() != arrow:
            raise reader.error(f"{reader.peek() or 'the end'!r} where {arrow!r} was expected")
        reader.next()
        right = reader.term()
        found.append(_rule(reader, left, right, arrow == "=="))
        if not reader.more:
            return found
        if arrow == "=>":
            raise reader.error(f"{reader.peek()!r} after the end of the rule")


def paired(first: TextRule, second: TextRule) -> TextRule:
    """Combine two rules into one multi-pattern rule, which applies where both left sides match."""
    return TextRule(
        f"{first.text}\n{second.text}", first.line, first.lefts + second.lefts, first.rights + second.rights,
        problem=first.problem or second.problem,
    )  # fmt: skip
