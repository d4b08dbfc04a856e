"""Estimates the least time of a kernel of NumPy or PyTorch from the number of library functions that it calls.

A roofline has one launch for each kernel, but a norm of NumPy is a sequence of eight functions: for values of a few
kilobytes their calls are most of its time, which relatives of other sizes do not show. Nor do they show what a
generated kernel in C computes again, or one element at a time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from ...backends.generate.template import GeneratedKernel
from ...backends.tuning.keys import helper_texts
from ...extract.model.kernel import Candidate, output_names
from ...extract.model.pricing import Priced

CALL_US: Mapping[str, float] = {"numpy": 0.7, "torch": 2.5}
"""Least µs of a function's call with results in memory that is there already, by backend."""

IN_HELPER = 0.5
"""A library call inside a helper function is taken to cost this fraction of `CALL_US`, since its operands are still in
the cache from the call before."""

AGAIN_PER_US = 3.2e4
"""Most flops per µs, on two cores, of operations that a generated kernel in C computes more than once."""

_CALLED_NAME = re.compile(r"(?:np|torch|F)(?:\.\w+)+")  # not a method of a call's result: np.max(x).astype
_CALLED = {"numpy": re.compile(r"\bnp\.\w+(?:\.\w+)*\("), "torch": re.compile(r"\b(?:torch|F)\.\w+(?:\.\w+)*\(")}


def called(candidate: Candidate) -> tuple[int, int]:
    """Numbers of the library's functions that a kernel calls: by its code, and by its helper functions on the path with
    the fewest calls."""
    template, call = candidate.template, candidate.call
    names = (*template.operands, "scratch", *output_names(len(template.terms)))
    found = _CALLED[template.backend].findall(template.write(replace(call, names={n: n for n in names})))
    return len(found), _in_helpers(template.backend, template.setup)


@cache
def _in_helpers(backend: str, setup: tuple[str, ...]) -> int:
    """Number of the library's functions that a kernel's helper functions, named in `setup`, call (`_on_path`)."""
    written = ast.parse(helper_texts(backend, setup)).body
    functions = {f.name: f for f in written if isinstance(f, ast.FunctionDef)}
    return sum(_on_path(functions[name].body, functions) for name in setup if name in functions)


def _on_path(body: Sequence[ast.stmt], functions: Mapping[str, ast.FunctionDef]) -> int:
    """Number of a library's functions that statements call on the path with the fewest of them, also through the
    helper `functions`; the body of a loop counts once."""
    count = 0
    for n, statement in enumerate(body):
        if isinstance(statement, ast.If):
            rest = body[n + 1 :]
            paths = ([*statement.body, *rest], [*statement.orelse, *rest])
            return count + _in_parts(statement.test, functions) + min(_on_path(path, functions) for path in paths)
        if isinstance(statement, ast.For | ast.While | ast.With):
            count += _on_path(statement.body, functions)
        else:
            count += _in_parts(statement, functions)
        if isinstance(statement, ast.Return):
            break
    return count


def _in_parts(node: ast.AST, functions: Mapping[str, ast.FunctionDef]) -> int:
    """The number of `_on_path` for an expression or a statement without others in it."""
    count = 0
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and _CALLED_NAME.fullmatch(name := ast.unparse(part.func)):
            count += 1
        elif isinstance(part, ast.Call) and name in functions:
            rest = {other: f for other, f in functions.items() if other != name}  # which ends recursion
            count += _on_path(functions[name].body, rest)
    return count


def least_us(candidate: Candidate) -> float:
    """Least µs of a kernel: for NumPy and PyTorch those of its calls, for a generated kernel in C those of the
    operations that it computes more than once; 0 for others."""
    template, backend = candidate.template, candidate.template.backend
    if isinstance(template, GeneratedKernel):
        return max(0.0, template.flops(candidate.call) - template.work) / AGAIN_PER_US if backend == "c" else 0.0
    if backend not in CALL_US or template.space is not None or candidate.is_view:
        return 0.0
    direct, inner = called(candidate)
    return CALL_US[backend] * (direct + IN_HELPER * inner)


def with_calls(price: Priced, candidate: Candidate, least: Callable[[Candidate], float] = least_us) -> Priced:
    """A price that is not measured, raised to the least time of its calls (`least`, in µs)."""
    us = 0.0 if price.source in ("measured", "failed") else least(candidate)
    return price if price.us >= us else replace(price, us=us, high=max(price.high, us))


__all__ = ["CALL_US", "called", "least_us", "with_calls"]
