"""Inputs of programs that are indices, or from which indices are computed: calls with indices outside of an axis are
refused on a CPU, where kernels would take the element at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...errors import BadModelError, IndexRangeError

#: A step of the computation of indices from an input: name in `STEPS`, and its numbers.
Step = tuple[str | int, ...]
MOST_STEPS = 12


class IndexLimit(NamedTuple):
    """An input from whose elements `steps` compute indices of an axis: `low` <= index < `high`; `low` is negative where
    negative indices count from the end of the axis.

    Where the axis has a free size, `axis_of` is an input and its axis of that size, `high` is 0, and `low` -1 or 0.
    """

    name: str
    low: int
    high: int
    steps: tuple[Step, ...] = ()
    axis_of: tuple[str, int] | None = None


def _slice(x: Any, axis: int, start: int, stop: int, step: int) -> Any:
    return x[(slice(None),) * min(axis, x.ndim) + (slice(start, stop, step),)]  # IndexError for an axis it lacks


#: Name of a step -> (number of its integer arguments, -1 for any number; function of an integer array and these
#: arguments, which computes what the graph's ops do).
STEPS: dict[str, tuple[int, Callable[..., Any]]] = {
    "slice": (4, _slice), "cast": (1, lambda x, bits: x.astype(f"int{bits}")), "add": (1, np.add), "sub": (1, np.subtract),
    "mul": (1, np.multiply), "floordiv": (1, np.floor_divide), "mod": (1, np.remainder), "maximum": (1, np.maximum),
    "minimum": (1, np.minimum), "neg": (0, np.negative), "abs": (0, np.abs), "from": (1, lambda x, number: np.subtract(number, x)),
    "reshape": (-1, lambda x, *shape: x.reshape(shape)), "permute": (-1, lambda x, *axes: x.transpose(axes)),
    "flip": (1, np.flip),
}  # fmt: skip


def is_step(step: Sequence[Any]) -> bool:
    """Whether a value read from a file is a step: a name of `STEPS` with its number of integers."""
    known = STEPS.get(step[0]) if step and isinstance(step[0], str) else None
    numbers = step[1:]
    if (
        known is None
        or known[0] not in (-1, len(numbers))
        or not all(isinstance(n, int) and abs(n) < 1 << 63 for n in numbers)
    ):
        return False
    return step[0] != "cast" or numbers[0] in (8, 16, 32, 64)


def index_check(limits: Sequence[IndexLimit], names: Sequence[str]) -> Callable[[Sequence[Any]], None]:
    """Function of a call's inputs, arrays or tensors in the order of `names`, that raises IndexRangeError for an index
    outside of its limits, BadModelError for steps that an input's shape or dtype does not allow (a damaged file).

    Inputs that are no integers and tensors of other devices, for whose values the host would wait, are not looked at.
    """
    known = [limit for limit in limits if limit.name in names and (limit.axis_of is None or limit.axis_of[0] in names)]
    tests = [partial(_check, limit, names.index(limit.name), _axis(limit, names)) for limit in known]

    def check(inputs: Sequence[Any]) -> None:
        for test in tests:
            test(inputs)

    return check


def _axis(limit: IndexLimit, names: Sequence[str]) -> tuple[int, int] | None:
    """Position of the input and its axis that has the free size of the indexed axis; None if that size is fixed."""
    return None if limit.axis_of is None else (names.index(limit.axis_of[0]), limit.axis_of[1])


def _check(limit: IndexLimit, position: int, sized: tuple[int, int] | None, inputs: Sequence[Any]) -> None:
    """Raise IndexRangeError if input number `position` gives an index outside of the limit."""
    name, low, high, steps, _ = limit
    if (x := values_on_host(inputs[position], "iu")) is None:
        return
    try:
        if sized is not None:
            high = inputs[sized[0]].shape[sized[1]]
            low *= high
        for step in steps:
            x = STEPS[str(step[0])][1](x, *step[1:])
    except (ValueError, IndexError, OverflowError, MemoryError):  # numbers that the dtype lacks, too long slices
        raise BadModelError(
            f"the program's manifest computes indices from {name!r} that its shape or dtype does not allow"
        ) from None
    refuse_outside(x, low, high, f"input {name!r} {'gives' if steps else 'has'} the index")


def refuse_outside(x: np.ndarray[Any, Any], low: int, high: int, text: str) -> None:
    """Raise IndexRangeError if an integer of `x` is not in `low` <= x < `high`. `text` is the beginning of the message,
    which the integer follows."""
    if not x.size:
        return
    least, largest = int(np.minimum.reduce(x, axis=None)), int(np.maximum.reduce(x, axis=None))
    if least < low or largest >= high:
        refused = "; the function raises an error for such values" if least == -1 << 63 else ""  # a tracer writes that
        raise IndexRangeError(
            f"{text} {least if least < low else largest}, which is outside of an axis of {high} elements",
            hint=f"indices from {low} to {high - 1} are valid{refused}",
        )


def values_on_host(x: Any, kinds: str) -> np.ndarray[Any, Any] | None:
    """An array, or the memory of a CPU tensor as an array, if its dtype is of one of the `kinds` (characters of NumPy's
    `dtype.kind`); None for others, and for tensors of other devices, for whose values the host would wait."""
    if hasattr(x, "aminmax"):  # a tensor of PyTorch
        if x.device.type != "cpu":
            return None
        try:
            x = (x.detach() if x.requires_grad else x).numpy()
        except (RuntimeError, TypeError):  # a tensor without data in a mode of PyTorch, or a dtype that NumPy lacks
            return None
    return x if isinstance(x, np.ndarray) and x.dtype.kind in kinds else None


__all__ = [
    "MOST_STEPS",
    "STEPS",
    "IndexLimit",
    "Step",
    "index_check",
    "is_step",
    "refuse_outside",
    "values_on_host",
]
