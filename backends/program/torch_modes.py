"""Modes of Torch that are switched off during calls of programs: autocast, inference mode, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...imported import imported


def mode_to_leave(torch: Any, sized: bool) -> Callable[[], bool] | None:
    """Function that tells whether the caller is in a Torch mode that must be switched off during a call of a program;
    None if Torch is not used.

    Autocast would change the dtypes of the plan. Inference mode matters to programs with free sizes (`sized`): memory
    that they allocate in it could not be written outside of it later.
    """
    if torch is None:
        return None
    autocast, inference = torch._C._is_any_autocast_enabled, torch.is_inference_mode_enabled
    return (lambda: autocast() or inference()) if sized else autocast


@contextmanager
def in_plain_modes(device: str) -> Iterator[None]:
    """Context manager that switches off autocast on the device ("" for the host), inference mode and gradients, if
    Torch is imported."""
    torch = imported("torch")
    if torch is None:
        yield
        return
    plain = torch.autocast(device.partition(":")[0] or "cpu", enabled=False)
    with plain, torch.inference_mode(False), torch.no_grad():  # leaving inference mode turns gradients on
        yield
