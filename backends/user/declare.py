"""Declares user kernels: the decorator `tg.kernel`, and `tg.Launch`, which a body in C, CUDA C++ or Triton may
return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...egraph.patterns.pattern_attrs import Attr, attr_names, holds
from ...egraph.patterns.pattern_parser import parse_guard
from ...egraph.types import dtypes
from ...errors import KernelError, TensorGraphsError
from ...extract.model.kernel import Call, output_names
from .operand_specs import OperandSpec, bound, operand_spec

#: Language of a body -> backends whose kernels it becomes.
BACKENDS = {
    "c": ("c",),
    "numpy": ("numpy",),
    "torch": ("torch", "torch_cuda"),
    "triton": ("triton",),
    "cuda": ("nvrtc",),
}
PYTHON = ("numpy", "torch")  # languages in which the decorated function is the kernel itself
MOST_VARIANTS = 64  # combinations of choices

Reference = str | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Source text of a kernel in C, CUDA C++ or Triton, and how it is launched.

    `source` defines a function with the name of the decorated function. Its arguments are pointers to the inputs, then
    to the outputs, in declared order; a Triton function also takes `constants` by name. `grid`: programs (Triton) or
    blocks (CUDA C++) along up to three axes. `block`: threads of a block along up to three axes, `shared`: dynamic
    shared memory in bytes (CUDA C++). `warps` and `stages` are Triton's `num_warps` and `num_stages`.
    """

    source: str
    grid: tuple[int, ...] = (1,)
    block: int | tuple[int, ...] = 256
    shared: int = 0
    constants: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, eq=False)
class Kernel:
    """A declared user kernel; most fields are the arguments of `kernel`, its decorator. Calling it calls the decorated
    function `body`, defined in the file `file`."""

    name: str
    language: str
    reference: Reference
    inputs: Mapping[str, OperandSpec]
    body: Callable[..., Any]
    file: Path
    outputs: int
    types: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, tuple[int, ...]]
    where: tuple[str, ...]
    choices: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, tuple[Any, ...]]
    strided: tuple[str, ...]
    nan: str

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.body(*args, **named)

    @property
    def axes(self) -> list[str]:
        """Names of the sizes in the operand specifications, with those of starred axes (any number of axes)."""
        return list(dict.fromkeys(a.lstrip("*") for s in self.inputs.values() for a in s.axes if isinstance(a, str)))

    @property
    def parameters(self) -> list[str]:
        """Names of the body's parameters."""
        return list(inspect.signature(self.body).parameters)

    def known(self, call: Call) -> dict[str, Any] | None:
        """Sizes, types and constants of a call by name; None if the kernel does not apply to its operands."""
        found = bound(self.inputs, self.types, {n: o.type for n, o in call.operands.items()})
        if found is None or any(found[n] not in allowed for n, allowed in self.sizes.items()):
            return None
        return found | {n: call.attrs[n] for n in self.constants if n in call.attrs}

    def allows(self, known: Mapping[str, Any]) -> bool:
        """Whether the conditions of `where` hold for the values `known` of all names that they mention."""
        return holds(self.conditions, known)

    @property
    def conditions(self) -> list[Attr]:
        """The parsed conditions of `where`."""
        return [parse_guard(text) for text in self.where]

    def variants(self) -> list[dict[str, int]]:
        """All combinations of the kernel's choices (schedule parameters), as name -> value; one empty combination if
        there are none."""
        found: list[dict[str, int]] = [{}]
        for name, values in self.choices.items():
            found = [{**one, name: value} for one in found for value in values]
        return found


def kernel(
    language: str, *, reference: Reference, inputs: Mapping[str, str], outputs: int = 1,
    types: Mapping[str, Sequence[str]] | None = None, sizes: Mapping[str, Sequence[int]] | None = None,
    where: str | Sequence[str] = (), choices: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Sequence[Any]] | None = None, strided: Sequence[str] = (), nan: str = "propagate",
) -> Callable[[Callable[..., Any]], Kernel]:  # fmt: skip
    """Decorator that declares the function below it as a kernel; `tg.use_kernels` makes kernels of a file candidates.

        @tg.kernel("c", reference=lambda x, y: tg.silu(x) * y, inputs={"x": "float32[M, N]", "y": "float32[M, N]"})
        def swiglu(M, N):
            return f"void swiglu(const float *x, const float *y, float *out) {{ ... {M * N} ... }}"

    `language`: "c", "cuda" and "triton" (the function returns the source text, or a `tg.Launch`), "numpy" and "torch"
    (the function is the kernel: it reads the inputs and writes `out`, `out1`, ...). Parameters of the function are
    found by name: sizes, types, choices and constants; in NumPy and Torch also all inputs and outputs.

    `reference`: what the kernel computes: a function of tensors with the inputs' names, traced once, or a text in the
    pattern language of rules. Its keyword-only parameters are constants: they match every number, and the body
    receives it. `inputs`: name -> "dtype[axis, ...]"; an axis is a number, a name (equal names are equal sizes) or
    `*name`, any number of axes, a tuple in the body. `outputs`: number of results. `types`: name -> dtypes that it may
    stand for. `sizes`: name -> the only permitted sizes. `where`: conditions on sizes, types, constants and choices,
    such as "N % 8 == 0". `choices`: schedule parameters with their values; every combination is measured. `constants`:
    name -> values to test a constant with (default: the reference's default value, else 0.5 and 2.0). `strided`:
    inputs that may have any strides; the others are row-major. `nan`: "propagate", or "ignore" if results for NaN and
    infinities are not defined.

    Raises KernelError for a malformed declaration.
    """

    def declared(body: Callable[..., Any]) -> Kernel:
        name = getattr(body, "__name__", "")
        try:
            made = Kernel(
                name, language, reference, {n: operand_spec(n, s) for n, s in inputs.items()}, body,
                Path(getattr(getattr(body, "__code__", None), "co_filename", "")), outputs,
                {n: tuple(v) for n, v in (types or {}).items()}, {n: tuple(v) for n, v in (sizes or {}).items()},
                (where,) if isinstance(where, str) else tuple(where), {n: tuple(v) for n, v in (choices or {}).items()},
                _constants(reference, constants or {}), tuple(strided), nan,
            )  # fmt: skip
            _check(made)
        except KernelError:
            raise
        except (TensorGraphsError, TypeError, ValueError, AttributeError, LookupError) as error:
            why = error.message if isinstance(error, TensorGraphsError) else f"{type(error).__name__}: {error}"
            raise KernelError(f"the kernel {name!r} is malformed: {why}", where="tg.kernel") from None
        return made

    return declared


def _constants(reference: Reference, given: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Constants of a reference function (its keyword-only parameters) by name, with the values with which they are
    tested. `given` replaces default values."""
    found: dict[str, tuple[Any, ...]] = {}
    if callable(reference):
        for name, one in inspect.signature(reference).parameters.items():
            if one.kind is one.KEYWORD_ONLY:
                found[name] = (0.5, 2.0) if one.default is one.empty else (one.default, 3 * one.default)
    return found | {n: tuple(v) for n, v in given.items()}


def _check(one: Kernel) -> None:
    """Raises KernelError if a declaration is inconsistent."""

    def refuse(why: str, hint: str = "") -> None:
        raise KernelError(f"the kernel {one.name!r} is malformed: {why}", where=str(one.file), hint=hint)

    if one.language not in BACKENDS:
        refuse(f"there is no language {one.language!r}", hint=f"one of {', '.join(BACKENDS)}")
    if not one.name.isidentifier() or not one.inputs or not 1 <= one.outputs <= 8:
        refuse("it needs a function with a name, at least one input, and 1 to 8 outputs")
    if one.nan not in ("propagate", "ignore"):
        refuse(f"nan={one.nan!r}", hint='"propagate" or "ignore"')
    for name, allowed in one.types.items():
        if not allowed or any(dtypes.check(d) != d for d in allowed):
            refuse(f"the type {name} stands for no dtypes")
    if not callable(one.reference) and not isinstance(one.reference, str):
        refuse(f"its reference has the type {type(one.reference).__name__}", hint="a function of tensors, or a text")
    for name, tested in one.constants.items():
        if not tested:
            refuse(f"the constant {name} has no test values")
    for part in (one.sizes, one.choices):
        for name, values in part.items():
            if not values or any(type(v) is not int or v < 0 for v in values):
                refuse(f"the values of {name} are not whole numbers from 0 on")
    if unknown := {*one.sizes} - {*one.axes}:
        refuse(f"sizes: {min(unknown)} is no axis of an input")
    if unknown := {*one.strided} - {*one.inputs}:
        refuse(f"strided: {min(unknown)} is no input")
    if len(one.variants()) > MOST_VARIANTS:
        refuse(f"{len(one.variants())} combinations of choices", hint=f"at most {MOST_VARIANTS}")
    names = [*one.inputs, *output_names(one.outputs), *one.axes, *one.types, *one.choices, *one.constants]
    if twice := {n for n in names if names.count(n) > 1}:
        refuse(f"{min(twice)} is used for two things")
    known = {*one.axes, *one.types, *one.choices, *one.constants}
    for text, condition in zip(one.where, one.conditions):
        if unknown := {*attr_names(condition)} - known:
            refuse(f"the condition {text!r} mentions {min(unknown)}", hint=f"known: {', '.join(sorted(known))}")
    operands = {*one.inputs, *output_names(one.outputs)} if one.language in PYTHON else set()
    if unknown := {*one.parameters} - known - operands:
        refuse(f"its function has a parameter {min(unknown)}", hint=f"known: {', '.join(sorted(known | operands))}")
    if missing := operands - {*one.parameters}:
        refuse(f"its function has no parameter {min(missing)}")


__all__ = ["BACKENDS", "PYTHON", "Kernel", "Launch", "kernel"]
