"""Arguments that had a value when a function was traced, such as numbers and None: a program has that value in place of
an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import UsageError


class FixedArgument(NamedTuple):
    """An argument, or an item of a nested argument, that is no tensor.

    `name`: that of the parameter; `position`: its place in a call, -1 if it can be given by name only. `path`: keys and
    indices of the item in the argument, () for the argument itself. `value`: the traced value as text (`spelled`).
    """

    name: str
    position: int
    path: tuple[int | str, ...]
    value: str

    @property
    def title(self) -> str:
        """The argument with its path, such as "pair[0]"."""
        return self.name + "".join(f"[{key!r}]" for key in self.path)


def spelled(value: Any) -> str:
    """Text that two values share only if they have the same type and value: 3, 3.0 and np.float64(3.0) differ. Text of
    at most 200 characters."""
    return repr(value)[:200]


def without_fixed(
    args: Sequence[Any], named: Mapping[str, Any], fixed: Sequence[FixedArgument], inputs: int
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call, `args` and `named`, without those that are fixed; `inputs`: number of the program's
    inputs.

    Positional arguments are either all of the function's, or only those that are not fixed. Raises UsageError if a
    fixed argument is given with another value than the traced one.
    """
    whole = {f.position: f for f in fixed if not f.path and f.position >= 0}
    full = len(args) > inputs or any(i < len(args) and _is_constant(args[i]) for i in whole)
    for f in fixed:
        place = f.position if full else f.position - sum(i < f.position for i in whole)
        if f.name in named:
            _check(f, named[f.name])
        elif f.position >= 0 and place < len(args) and (full or f.path):
            _check(f, args[place])
    names = {f.name for f in fixed if not f.path}
    kept = [x for i, x in enumerate(args) if not (full and i in whole)]
    return kept, {n: x for n, x in named.items() if n not in names}


def _is_constant(value: Any) -> bool:
    return not (hasattr(value, "shape") or isinstance(value, Mapping | list | tuple))


def _check(fixed: FixedArgument, value: Any) -> None:
    """Raise UsageError if the item of a given argument is there and is not the traced value."""
    for key in fixed.path:
        if not isinstance(value, Mapping | list | tuple):
            return
        try:
            value = value[key]
        except (LookupError, TypeError):
            return
    if hasattr(value, "shape") or spelled(value) != fixed.value:
        what = "an array" if getattr(value, "shape", ()) else spelled(value)
        raise UsageError(
            f"{fixed.title} was fixed at {fixed.value} when the function was traced; the call gives {what}",
            hint="optimize again with this value, or give an array as the example to make it an input",
        ) from None


__all__ = ["FixedArgument", "spelled", "without_fixed"]
