"""Estimates the least time of a kernel of NumPy or PyTorch from the number of library functions that it calls.

A roofline has one launch for each kernel, but a norm of NumPy is a sequence of eight functions: for values of a few
kilobytes their calls are most of its time, which relatives of other sizes do not show. Nor do they show what a
generated kernel in C computes again, or one element at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from ...backends.generate.template import GeneratedKernel
from ...backends.tuning.keys import helper_texts
from ...extract.model.kernel import Candidate, Template, output_names
from ...extract.model.pricing import Priced

CALL_US: Mapping[str, float] = {"numpy": 0.7, "torch": 2.5}
"""Least µs of a function's call with results in memory that is there already, by backend."""

AGAIN_PER_US = 3.2e4
"""Most flops per µs of two cores that a generated kernel in C computes again (`NestSchedule.again`)."""

_CALLED = {"numpy": re.compile(r"\bnp\.\w+(?:\.\w+)*\("), "torch": re.compile(r"\b(?:torch|F)\.\w+(?:\.\w+)*\(")}


def called(candidate: Candidate) -> int:
    """Number of the library's functions that a kernel's code and its helper functions call, each where it stands."""
    template, call = candidate.template, candidate.call
    names = (*template.operands, "scratch", *output_names(len(template.terms)))
    found = _CALLED[template.backend].findall(template.write(replace(call, names={n: n for n in names})))
    return len(found) + _by_helpers(template)


def _by_helpers(template: Template) -> int:
    return _in_text(template.backend, template.setup)


@cache
def _in_text(backend: str, setup: tuple[str, ...]) -> int:
    return len(_CALLED[backend].findall(helper_texts(backend, setup)))


def least_us(candidate: Candidate) -> float:
    """Least µs of a kernel of NumPy or PyTorch by its calls, and of a generated kernel in C by what it computes again;
    0 for others."""
    template, backend = candidate.template, candidate.template.backend
    if isinstance(template, GeneratedKernel):
        return max(0.0, template.flops(candidate.call) - template.work) / AGAIN_PER_US if backend == "c" else 0.0
    if backend not in CALL_US or template.space is not None or candidate.is_view:
        return 0.0
    return CALL_US[backend] * called(candidate)


def with_calls(price: Priced, candidate: Candidate) -> Priced:
    """A price that is not measured, raised to the least time of its calls."""
    least = 0.0 if price.source in ("measured", "failed") else least_us(candidate)
    return price if price.us >= least else replace(price, us=least, high=max(price.high, least))


__all__ = ["CALL_US", "called", "least_us", "with_calls"]
