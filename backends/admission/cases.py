"""Makes the test cases of a user kernel: sizes within its declaration, edges included, and adversarial values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from ...egraph.ir.graph import Graph
from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern_attrs import Fact
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import KernelError, ShapeError
from ...extract.model.kernel import Call, Operand, contiguous
from ...extract.model.meaning import output_terms
from ...wording import spelled_values
from ..user.templates import UserKernel
from ..verification.inputs import inputs

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 256, 257, 384, 512, 640,
         768, 1000, 1024, 1536, 2048, 3072, 4096)  # fmt: skip
STARRED = ((), (1,), (3,), (2, 5), (1, 4, 3), (2, 1, 3, 2))  # sizes of starred axes
CASES = 8  # choices of sizes
DRAWS = 20_000  # attempts to draw sizes
SMALL = 200  # attempts among which every second case has small sizes
MOST_ELEMENTS, MOST_WORK = 1 << 19, 1 << 24  # of an operand; product of all sizes
MOST_INTERPRETED = 1 << 10  # the same two in Triton's interpreter, which takes milliseconds for a program of the grid
KINDS = ("normal", "wide", "zeros", "large", "tiny", "negative", "nan", "infinite")
OTHERS = ("normal", "wide")  # kinds for the third choice of sizes and further ones


@dataclass(frozen=True)
class Case:
    """A kernel call to test. `known`: values of the declared sizes, types and constants by name."""

    call: Call
    known: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{spelled_values(self.known)} ({', '.join(f'{n}: {o.type}' for n, o in self.call.buffers.items())})"


def cases_of(template: UserKernel, count: int = CASES, *, interpreted: bool = False) -> list[Case]:
    """Up to `count` test cases (sizes and operand values), alternately with small sizes (the smallest first) and with
    random sizes.

    Raises KernelError if none is found. `interpreted`: the kernel runs in Triton's interpreter, where sizes stay small.
    """
    limits = (MOST_INTERPRETED, MOST_INTERPRETED) if interpreted else (MOST_ELEMENTS, MOST_WORK)
    found = list(islice(_drawn(template, limits), count))
    if not found:
        raise KernelError(
            f"no sizes were found that the kernel {template.kernel.name!r} applies to", where=str(template.file.path),
            hint='declare sizes, such as sizes={"N": (768, 1024)}',
        )  # fmt: skip
    return found


def _drawn(template: UserKernel, limits: tuple[int, int]) -> Iterator[Case]:
    kernel, rng = template.kernel, np.random.default_rng(0)
    ranks = dict(template.form.ranks)
    stars = {a[1:] for s in kernel.inputs.values() for a in s.axes if isinstance(a, str) and a[0] == "*"}
    options: dict[str, list[Any]] = {
        a: [s for s in STARRED if a not in ranks or len(s) == ranks[a]] if a in stars
        else sorted(kernel.sizes.get(a, SIZES)) for a in kernel.axes
    }  # fmt: skip
    options |= {n: list(v) for n, v in kernel.types.items()}
    constants = {n: list(v) for n, v in kernel.constants.items()}
    seen: set[str] = set()
    for draw in range(DRAWS):
        largest = max(1, min(len(SIZES), 1 + draw // 4))  # the smallest sizes first
        small = draw < SMALL and len(seen) % 2 == 0
        known = {n: v[int(rng.integers(min(len(v), largest) if small else len(v)))] for n, v in options.items()}
        attrs = {n: v[int(rng.integers(len(v)))] for n, v in constants.items()}
        case = _case(template, known, attrs, limits)
        if case is not None and str(case) not in seen:
            seen.add(str(case))
            yield case


def _case(
    template: UserKernel, known: Mapping[str, Any], constants: Mapping[str, Any], limits: tuple[int, int]
) -> Case | None:
    """The case for given sizes and types (`known`) and constants; None if the kernel does not apply, or if the case
    exceeds `limits`: (elements of an operand, product of all sizes)."""
    kernel = template.kernel
    shapes = {n: s.shape(known) for n, s in kernel.inputs.items()}
    if max(map(prod, shapes.values())) > limits[0] or prod(_numbers(known)) > limits[1]:
        return None
    types = {n: Type(shapes[n], known.get(s.dtype, s.dtype)) for n, s in kernel.inputs.items()}
    operands = {n: _operand(t) for n, t in types.items()}
    attrs = {**constants, **template.form.attributes({n: Fact(t, False) for n, t in types.items()})}
    try:
        terms = output_terms(template, Call(operands, next(iter(operands.values())), attrs))
    except ShapeError:
        return None
    first, *more = [_operand(t.type) for t in terms]
    call = Call({n: operands[n] for n in template.operands}, first, attrs, more=tuple(more))
    if prod(concrete(terms[0].shape)) > limits[0] or template.applies is None or not template.applies(call):
        return None
    return Case(call, {**known, **constants})


def _numbers(known: Mapping[str, Any]) -> Iterator[int]:
    for value in known.values():
        yield from [value] if isinstance(value, int) else value if isinstance(value, tuple) else []


def _operand(kind: Type) -> Operand:
    return Operand(kind, contiguous(kind.shape))  # type: ignore[arg-type]


def kinds_of(number: int, nan: str) -> tuple[str, ...]:
    """Kinds of operand values (random, zeros, NaN, ...) to test in case `number`; NaN and infinities only if the kernel
    propagates them.

    `nan`: the kernel's declared treatment of NaN (`Kernel.nan`).
    """
    found = KINDS if number < 2 else OTHERS
    return tuple(k for k in found if nan == "propagate" or k not in ("nan", "infinite"))


def values_of(template: UserKernel, case: Case, kind: str) -> dict[str, Array]:
    """Draw values of all inputs, by name. Integers stay in the ranges that the reference needs. `kind`: one of
    `KINDS`."""
    rng = np.random.default_rng(KINDS.index(kind))
    graph = Graph.of(output_terms(template, case.call))
    with np.errstate(all="ignore"):
        drawn = inputs(graph, rng, 1 if kind == "wide" else 0, ("param",))
        return {n: _changed(np.asarray(drawn[n]), kind, rng) for n in case.call.operands}


def _changed(x: Array, kind: str, rng: np.random.Generator) -> Array:
    """Values of one kind (NaN, zeros, large ones, …), made from usual values."""
    if not dtypes.is_float(dtypes.name_of(x.dtype)) or kind in ("normal", "wide"):
        return x
    narrow = x.dtype.itemsize == 2
    if kind == "zeros":
        return np.zeros_like(x)
    if kind == "negative":
        return np.asarray(-abs(x))
    if kind in ("large", "tiny"):
        factor = {"large": 50.0 if narrow else 1e4, "tiny": 1e-5 if narrow else 1e-30}[kind]
        return np.asarray(x.astype(np.float64) * factor).astype(x.dtype)
    found = x.copy()
    if found.size:
        flat = found.reshape(-1)
        for value in (np.nan,) if kind == "nan" else (np.inf, -np.inf):
            flat[int(rng.integers(found.size))] = value
    return found


__all__ = ["CASES", "Case", "cases_of", "kinds_of", "values_of"]
