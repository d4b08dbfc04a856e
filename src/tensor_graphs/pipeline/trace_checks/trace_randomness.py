"""Detects functions and modules that draw random numbers, or whose results differ between calls for another reason."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...imported import imported

LEAST_S = 0.25  # seconds that an optional part may take in any case
CALL_S = 5.0  # estimated seconds that the first call of a function may take in any case
MORE_CALLS = 16  # further calls on the same inputs of a function that draws from no known generator, in CHEAP_S
CHEAP_S = 0.05  # seconds that these calls may take
DRAWING_CALLS = 64  # further calls of a function that draws random numbers: few of them may change its result
DRAWS = 512  # draws of an operator, of which the largest or least are taken: see `extreme_draws`
AGAIN, MORE = "a second call on the same inputs", "more calls of a function that draws random numbers"  # optional parts


@dataclass
class OptionalTime:
    """The time of a comparison's optional parts: `spare()` is the seconds that a part may take now, `omitted` the texts
    of those that were left out for lack of it."""

    spare: Callable[[], float]
    omitted: list[str] = field(default_factory=list)

    def suffices(self, part: str, seconds: float) -> bool:
        """Whether there is time for a part that takes about `seconds`; if not, its name `part` is listed as left
        out."""
        fits = seconds <= max(LEAST_S, self.spare())
        if not fits and part not in self.omitted:
            self.omitted.append(part)
        return fits

    def too_long(self, seconds: float) -> str:
        """Text that says why not even one call, estimated at `seconds`, is made; "" if it is. It may take CALL_S, or
        ten times as long as an optional part."""
        if seconds <= max(CALL_S, 10 * self.spare()):
            return ""
        return f"it would take about {seconds:.0f} s"

    @property
    def omission_text(self) -> str:
        """Text about the parts of a comparison that were left out; "" for none."""
        return f"; left out for lack of time: {', '.join(self.omitted)}" if self.omitted else ""


def random_states(function: Callable[..., Any]) -> list[Any]:
    """States of the random generators that a function may draw from: the global ones of Python, NumPy and Torch, and
    those of its closure, of the globals that it names, and of its object or its submodules.
    """
    numpy: Any = np.random.get_state()
    found: list[Any] = [random.getstate(), (numpy[0], np.asarray(numpy[1]).tobytes(), *numpy[2:])]
    if torch := imported("torch"):
        found.append(torch.get_rng_state().numpy().tobytes())
    for value in _named_values(function):
        if isinstance(value, np.random.Generator | np.random.RandomState):
            own = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
            found.append(repr(own.state))
        elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
            found.append(value.getstate())
        elif torch and isinstance(value, torch.Generator):
            found.append(value.get_state().numpy().tobytes())
    return found


def _named_values(function: Any) -> Iterator[Any]:
    """Values that a function's closure and code name, and attributes of the object or module that is called."""
    owner: Any = getattr(function, "__self__", None if inspect.isfunction(function) else function)
    modules = list(owner.modules()) if callable(getattr(owner, "modules", None)) else [owner]
    for module in modules:
        yield from tuple(getattr(module, "__dict__", {}).values())
    codes: list[Any] = [function, *(getattr(type(m), n, None) for m in modules for n in ("forward", "__call__"))]
    for code in codes:
        try:
            names = inspect.getclosurevars(code)
        except (TypeError, ValueError):  # a builtin function, or no function
            continue
        yield from (*names.nonlocals.values(), *names.globals.values())


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Context manager that restores the global random generators of Python, NumPy and Torch's CPU at its end."""
    python, numpy, torch = random.getstate(), np.random.get_state(), imported("torch")
    kept = torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(kept)


def call_again(function: Callable[..., Any], call: Callable[[], None], took: float, time: OptionalTime) -> bool:
    """Whether a function draws random numbers: it is called again until equal results by chance are unlikely.

    `call` calls the function on the same inputs and raises for other results. `took`: seconds of a call. A function
    that draws from no known generator is called again within CHEAP_S only: it may use the clock, the operating system's
    or a hidden generator.
    """
    if not time.suffices(AGAIN, took):
        return False
    states = random_states(function)
    call()
    drew = random_states(function) != states
    for done in range(1, DRAWING_CALLS if drew else MORE_CALLS):
        if not (time.suffices(MORE, (done + 1) * took) if drew else (done + 1) * took <= CHEAP_S):
            break
        call()
    return drew


@contextmanager
def extreme_draws(largest: bool) -> Iterator[None]:
    """Context manager in which Torch's operators that draw random numbers give elementwise the largest, or the least,
    of DRAWS draws: a comparison with a bound of small probability then has its rare result.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    choose = torch.maximum if largest else torch.minimum

    class Extremes(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded not in func.tags or not isinstance(found, torch.Tensor):
                return found
            chosen = found.clone()
            for _ in range(DRAWS if found.numel() <= DRAWS else 1):
                chosen = choose(chosen, func(*args, **(kwargs or {})))
            return found.copy_(chosen)

    with Extremes():
        yield


__all__ = ["OptionalTime", "call_again", "extreme_draws", "random_state_kept", "random_states"]
