"""Prints and renames terms of the rule language, and substitutes attributes and variables."""

from __future__ import annotations

from ...egraph.ops.ops import OPS
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var, subterms
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
}


def render_attr(attr: Attr) -> str:
    """An attribute expression or guard as text in the rule language."""
    if isinstance(attr, AttrConstant):
        return repr(attr.value)
    if isinstance(attr, Name):
        return attr.name
    parts = [render_attr(a) for a in attr.args]
    if attr.function == "vec":
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if attr.function == "at":
        return f"{parts[0]}[{parts[1]}]"
    if attr.function in _INFIX:
        nested = [f"({p})" if isinstance(a, Apply) and a.function in _INFIX and attr.function not in ("eq", "ne", "lt", "le", "add")
                  else p for a, p in zip(attr.args, parts)]  # fmt: skip
        return f" {_INFIX[attr.function]} ".join(nested)
    return f"{attr.function}({', '.join(parts)})"


def render(term: Term) -> str:
    """A term as text in the rule language, without attributes that have their default value."""
    if isinstance(term, Var):
        return term.name
    if isinstance(term, Literal):
        return f"lit({term.value!r}, {term.like})" if term.like else repr(term.value)
    defaults = OPS[term.op].defaults
    given = [
        f"{n}={render_attr(a)}"
        for n, a in term.attrs
        if not (isinstance(a, AttrConstant) and n in defaults and defaults[n] == a.value)
    ]
    name = f"{term.op}_" if term.op in ("and", "or", "not", "xor") else term.op
    return f"{name}({', '.join([*map(render, term.args), *given])})"


def outline(term: Term) -> str:
    """A term's ops as text, without attributes and variable names."""
    if isinstance(term, PatternCall):
        return f"{term.op}({','.join(map(outline, term.args))})"
    return "." if isinstance(term, Var) else repr(term.value)


def _renamed(attr: Attr, names: dict[str, str]) -> Attr:
    if isinstance(attr, Name):
        return Name(names.get(attr.name, attr.name))
    return Apply(attr.function, tuple(_renamed(a, names) for a in attr.args)) if isinstance(attr, Apply) else attr


def rename(term: Term, names: dict[str, str]) -> Term:
    """The term with tensor variables renamed."""
    if isinstance(term, Var):
        return Var(names[term.name])
    if isinstance(term, PatternCall):
        return PatternCall(
            term.op, tuple(rename(a, names) for a in term.args), tuple((n, _renamed(a, names)) for n, a in term.attrs)
        )
    return term


def substitute(term: Term, old: tuple[str, Attr], new: Attr) -> Term:
    """The term with the attribute `old` (name, value) replaced by the value `new` at all its occurrences."""
    if not isinstance(term, PatternCall):
        return term
    attrs = tuple((n, new if (n, a) == old else _inside(a, old, new)) for n, a in term.attrs)
    return PatternCall(term.op, tuple(substitute(a, old, new) for a in term.args), attrs)


def _inside(attr: Attr, old: tuple[str, Attr], new: Attr) -> Attr:
    """An attribute expression with a permutation replaced inside, as in `(1, 0)[i]`."""
    if old[0] != "perm" or not isinstance(attr, Apply):
        return attr
    return new if attr == old[1] else Apply(attr.function, tuple(_inside(a, old, new) for a in attr.args))


def along(term: Term, axis: Attr, new: Attr) -> Term:
    """The term with `size(x, axis)` replaced by `size(x, new)` in the attributes of its calls, for every variable x."""

    def change(attr: Attr) -> Attr:
        if not isinstance(attr, Apply):
            return attr
        if attr.function == "size" and attr.args[1] == axis:
            return Apply("size", (attr.args[0], new))
        return Apply(attr.function, tuple(map(change, attr.args)))

    if not isinstance(term, PatternCall):
        return term
    return PatternCall(
        term.op, tuple(along(a, axis, new) for a in term.args), tuple((n, change(a)) for n, a in term.attrs)
    )


def replace_use(term: Term, old: str, new: str, which: int) -> Term:
    """The term with use number `which` (from the left, from 0) of the variable `old` renamed to `new`.

    Unchanged if there are fewer uses.
    """
    count = -1

    def walk(t: Term) -> Term:
        nonlocal count
        if t == Var(old):
            count += 1
            return Var(new) if count == which else t
        return PatternCall(t.op, tuple(map(walk, t.args)), t.attrs) if isinstance(t, PatternCall) else t

    return walk(term)


def slots(term: Term) -> list[tuple[str, Attr]]:
    """Distinct (attribute, expression) pairs of a term whose expression is not a variable, in order."""
    found = [
        (n, a) for t in subterms(term) if isinstance(t, PatternCall) for n, a in t.attrs if not isinstance(a, Name)
    ]
    return list(dict.fromkeys(found))
