"""Writes parts of emitted Python source: identifiers, literals, imports, comments."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...egraph.types import dims, dtypes
from ...extract.model.plan import Plan
from ...wording import counted, with_article

RESERVED = frozenset(
    ["np", "math", "inf", "nan", "ctypes", "hashlib", "os", "shlex", "shutil", "subprocess", "tempfile", "warnings", "Path", "Lock", "partial", "C_SOURCE", "kernels", "ml_dtypes", "torch", "triton", "tl", "weights", "states", "bind", "run", "launch", "device", "graph", "main", "memory", "Array", "Any", "Callable", "Sequence", "float", "range", "len", *dir(builtins)]
) | frozenset(keyword.kwlist)  # fmt: skip

_WORD, _OWN_WORD = re.compile(r"\w+"), re.compile(r"(?<![.\w])\w+")


def identifier(text: str, taken: set[str]) -> str:
    """A Python identifier derived from `text` and different from all names in the set `taken`, to which it is added."""
    base = re.sub(r"[^0-9a-zA-Z_]+", "_", text).strip("_")[:60].rstrip("_") or "value"
    base = f"v_{base}" if base[0].isdigit() or base in RESERVED else base
    name, n = base, 2
    while name in taken or name in RESERVED:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    return name


def literal(value: Any) -> str:
    """Python text of a number, size expression, string, or tuple of these. Raises TypeError for other values."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(v)}, " for v in value).rstrip(" " if len(value) == 1 else ", ") + ")"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # emitted source imports the names inf and nan
    if isinstance(value, bool | int | float | str | dims.DimExpr):
        return repr(value)
    raise TypeError(f"cannot write {with_article(type(value).__name__)} into source: {value!r}")


def dtype_text(dtype: str) -> str:
    """Python expression of the NumPy dtype called `dtype`."""
    return (
        "ml_dtypes.bfloat16" if dtype == "bfloat16" else "np.bool_" if dtype == "bool" else f"np.{dtypes.check(dtype)}"
    )


#: Name that emitted source may use -> module to import it from ("": the name is the module).
_STANDARD = {
    **dict.fromkeys(
        ("ctypes", "functools", "hashlib", "json", "os", "shlex", "shutil", "subprocess", "tempfile", "warnings"), ""
    ),
    "partial": "functools",
    "Path": "pathlib",
    "finalize": "weakref",
    "perf_counter": "time",
    "Struct": "struct",
    "Callable": "collections.abc",
    "Mapping": "collections.abc",
    "Sequence": "collections.abc",
    "inf": "math",
    "nan": "math",
    "Lock": "threading",
    "Any": "typing",
}


_INSTALLED = ("ml_dtypes", "numpy as np", "torch", "triton", "triton.language as tl")


def imports_of(body: str) -> Iterator[str]:
    """Yields the import lines for the modules and names that the Python text `body` uses, in formatter order."""
    used = {word: module for word, module in _STANDARD.items() if _uses(body, word, r"[\w.]")}
    yield from (f"import {word}" for word, module in used.items() if not module)
    for module in sorted(set(used.values()) - {""}):
        yield f"from {module} import {', '.join(sorted(w for w, m in used.items() if m == module))}"
    if used:
        yield ""
    arrays = _uses(body, "Array", r"\w")
    text = f"{body} np" if arrays else body
    yield from (f"import {m}" for m in _INSTALLED if _uses(text, m.split()[-1], r"[\w\"]"))  # not a name in quotes
    if arrays:
        yield from ("", "Array = np.ndarray")


def words(text: str, members: bool = True) -> set[str]:
    """All names and numbers in a source text: its maximal runs of word characters, without those after a dot unless
    `members`. To look up many names this is faster than a search for each."""
    return set((_WORD if members else _OWN_WORD).findall(text))


def _uses(text: str, word: str, before: str) -> bool:
    """Whether a word occurs in a text, not preceded by a character of the class `before`.

    The pattern begins with the word, which `re` finds much faster than a look-behind.
    """
    return word in text and re.search(rf"{word}\b(?<!{before}{word})", text) is not None


def one_line(text: str) -> str:
    """`text` as one comment line: control characters, bidi marks and lone surrogates become "?"; at most 160
    characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text[:1000].split()))[:160]


def _quotable(text: str) -> str:
    return one_line(text).replace("\\", "/").replace('"', "'")


def title(plan: Plan) -> str:
    """First line of a program's source: name of its graph, number of kernels, and their estimated time if the plan has
    prices."""
    estimate = f", estimated {plan.cost:.1f} us (at least {plan.lower_bound:.1f})" if plan.cost else ""
    return f"{_quotable(plan.graph.name)}: {counted(plan.kernels, 'kernel')}{estimate}."


def signature(plan: Plan) -> str:
    """The inputs and outputs of `plan` with their types as one line, at most 400 characters."""
    given = ", ".join(f"{leaf.attr('name')}: {leaf.type}" for leaf in plan.graph.inputs)
    made = ", ".join(f"{n}: {plan.values[v].type}" for n, v in zip(plan.graph.names, plan.outputs))
    return f"({_quotable(given)}) -> ({_quotable(made)})"[:400]


def indented(lines: Iterable[str], width: int) -> Iterator[str]:
    """Yields the lines of text indented by `width` spaces; empty lines stay empty."""
    for line in lines:
        yield " " * width + line if line else line
