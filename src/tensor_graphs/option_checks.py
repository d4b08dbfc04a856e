"""Validates keyword arguments: each function raises UsageError for a value that an option of its kind cannot have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any

from .errors import UsageError
from .plain import as_float
from .wording import with_article

Check = Callable[[str, Any], None]
"""Raises UsageError for an invalid value of the named option."""


def anything(name: str, value: Any) -> None:
    """Accept any value: a validator for options that later stages check."""


def of_kind(meaning: str, *kinds: type) -> Check:
    """Make a validator that raises UsageError unless the value is an instance of one of the types, which `meaning`
    describes in the message."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kinds):
            raise UsageError(f"invalid argument {name}={value!r}", hint=f"{name} is {meaning}")

    return check


def is_flag(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a Python or NumPy bool, or an integer."""
    if not isinstance(value, Integral) and type(value).__name__ not in ("bool", "bool_"):
        raise UsageError(f"invalid argument {name}={value!r}", hint=f"{name} is True or False")


def is_budget(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a number of seconds from 0 on, infinity included."""
    of_kind("a number of seconds", Real)(name, value)
    if not as_float(value) >= 0:
        raise UsageError(f"invalid argument {name}={str(value)[:40]} (seconds)", hint="give a number from 0 on")


def is_seed(name: str, value: Any) -> None:
    """Raise UsageError unless the value is an integer from 0 on."""
    of_kind("an integer", Integral)(name, value)
    if value < 0:
        raise UsageError(f"invalid argument seed={value}", hint="give an integer from 0 on")


def is_level(name: str, value: Any) -> None:
    """Raise UsageError unless the value is an integer from 0 on."""
    of_kind("an integer", Integral)(name, value)
    if value < 0:
        raise UsageError(f"invalid argument {name}={value}", hint=f"{name} is an integer from 0 on")


def are_bounds(name: str, value: Any) -> None:
    """Raise UsageError unless the value is None or positive integers in ascending order."""
    of_kind("a sequence of integers", Sequence, NoneType)(name, value)
    found = list(value or ())
    if not all(isinstance(n, Integral) and int(n) > 0 for n in found) or found != sorted(set(found)):
        raise UsageError(
            f"invalid argument {name}={value!r}",
            hint=f"{name} is a sequence of integers from 1 on, each once, in order",
        )


def is_tolerance(name: str, value: Any) -> None:
    """Raise UsageError unless the value is the name of a tolerance or a relative error."""
    from .verification.comparison import allowed_error

    allowed_error(value, 0.0, "float32")


def is_limits(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a `Limits` (limits of saturation) or None."""
    from .egraph.saturate.saturate import Limits

    of_kind("a tg.Limits(...)", Limits, NoneType)(name, value)


def is_amount(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a number from 0 on, infinity included."""
    if not as_float(value) >= 0:
        raise UsageError(f"invalid argument {name}={repr(value)[:80]}", hint=f"{name} is a number from 0 on")


def is_share(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a number from 0 to 1."""
    if not 0 <= as_float(value) <= 1:
        raise UsageError(f"invalid argument {name}={repr(value)[:80]}", hint=f"{name} is a number from 0 to 1")


def is_count(name: str, value: Any) -> None:
    """Raise UsageError unless the value is an integer from 1 on."""
    of_kind("an integer", Integral)(name, value)
    if value < 1:
        raise UsageError(f"invalid argument {name}={value}", hint=f"{name} is an integer from 1 on")


def is_bound(name: str, value: Any) -> None:
    """Raise UsageError unless the value is None or a number from 0 on."""
    if value is not None:
        is_amount(name, value)


def is_named(name: str, value: Any) -> None:
    """Raise UsageError unless the value is None or a mapping whose keys are texts."""
    if not isinstance(value, Mapping | NoneType) or not all(isinstance(key, str) for key in value or ()):
        raise UsageError(f"invalid argument {name}={str(value)[:80]}", hint=f"{name} is a dict by name")


def is_rules(name: str, value: Any) -> None:
    """Raise UsageError unless the value is a list or tuple of rewrite rules."""
    from .egraph.patterns.rule import Rule

    of_kind("a list of tg.Rule(...)", list, tuple)(name, value)
    if wrong := [type(rule).__name__ for rule in value if not isinstance(rule, Rule)]:
        raise UsageError(
            f"invalid argument rules: {with_article(wrong[0])} is not a rule",
            hint='tg.Rule("name", "left side", "right side")',
        )


def is_progress(name: str, value: Any) -> None:
    """Raise UsageError unless the value is None or a receiver of messages: it has `say(stage, message)` and
    `stopped`."""
    if value is not None and not (callable(getattr(value, "say", None)) and hasattr(value, "stopped")):
        raise UsageError(f"invalid argument {name}={value!r}", hint=f"{name} is a tg.Progress(...)")


def is_quantization(name: str, value: Any) -> None:
    """Raise UsageError unless the value is None or the name of an encoding of quantized weights ("int8", for
    example)."""
    if value is not None:
        from .models.common.quantization import check_form

        of_kind("the name of a form", str)(name, value)
        check_form(value)


__all__ = [
    "Check",
    "anything",
    "are_bounds",
    "is_amount",
    "is_bound",
    "is_budget",
    "is_flag",
    "is_level",
    "is_limits",
    "is_named",
    "is_progress",
    "is_quantization",
    "is_rules",
    "is_seed",
    "is_tolerance",
    "of_kind",
]
