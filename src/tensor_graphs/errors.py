"""Every error a user can meet: one class per situation, with what was wrong, where, and what to do.

Each class carries the process exit code that the command line returns for it:
0 ok, 1 our bug, 2 usage, 3 bad or unsupported model, 4 device unavailable, 5 verification failed,
6 budget ended before any valid plan, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar


class TensorGraphsError(Exception):
    """Base of all errors raised on purpose. `where` says what was being read or done, `hint` what to do next."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, where, hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.where:
            parts.append(f"  where: {self.where}")
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, str]:
        """The `error` object of the command line's JSON output."""
        return {"code": self.code, "message": self.message, "where": self.where, "hint": self.hint}


class UsageError(TensorGraphsError):
    """A call or a command line that cannot mean anything: wrong argument, wrong type, missing input."""

    exit_code, code = 2, "usage"


class UnwritableError(UsageError):
    """A file or folder that could not be written: a full disk, a missing folder, no permission. What was there before is still there."""

    code = "unwritable"


class ShapeError(UsageError):
    """Operands whose shapes or dtypes do not fit the operation. `sizes` are those that differ, where it is about some."""

    code = "shape"

    def __init__(self, message: str, *, where: str = "", hint: str = "", sizes: Iterable[Any] = ()) -> None:
        super().__init__(message, where=where, hint=hint)
        self.sizes: tuple[Any, ...] = tuple(sizes)


class TraceError(UsageError):
    """A function that cannot be traced: an operation on a traced array without a meaning in a graph, or a graph that computes
    something else than the function."""

    code = "trace"


class TraceAttributeError(TraceError, AttributeError):
    """An attribute that a traced array does not have, and an array of NumPy neither."""


class BadModelError(TensorGraphsError):
    """A model file that is missing, truncated, malformed, cyclic or inconsistent."""

    exit_code, code = 3, "bad-model"


class BadWeightsError(BadModelError):
    """A weight file that is malformed, or a tensor that is missing, duplicated or of another shape than declared."""

    code = "bad-weights"


class TooLargeError(BadModelError):
    """A tensor whose size overflows, or that the machine does not hold: found by arithmetic before any allocation where that can
    be, else in place of a MemoryError."""

    code = "too-large"


class UntrustedModelError(BadModelError):
    """A model format whose loading can run code, opened without saying that it is trusted."""

    code = "untrusted"


class ExportError(BadModelError):
    """A PyTorch module or function that torch.export could not capture as one graph."""

    code = "export"


class UnsupportedError(TensorGraphsError):
    """Operators, dtypes or options that have no meaning here yet. Lists all of them, each with its count."""

    exit_code, code = 3, "unsupported"

    def __init__(
        self, message: str, *, missing: Mapping[str, int] | None = None, where: str = "", hint: str = ""
    ) -> None:
        self.missing = dict(missing or {})
        if self.missing:
            listed = ", ".join(f"{name} ×{count}" for name, count in sorted(self.missing.items()))
            message = f"{message}: {listed}"
        super().__init__(message, where=where, hint=hint)


class RuleError(TensorGraphsError):
    """A rewrite rule that is malformed, or that was refuted by evaluation."""

    exit_code, code = 2, "rule"


class DeviceUnavailableError(TensorGraphsError):
    """A backend or device that was asked for by name and is not usable here."""

    exit_code, code = 4, "device-unavailable"


class DeviceMemoryError(DeviceUnavailableError):
    """A device without room for what a program takes; found by arithmetic, before anything is launched."""

    code = "device-memory"


class DeviceFaultError(DeviceUnavailableError):
    """A kernel that faulted: the device cannot be used by this process any more."""

    code = "device-fault"


class VerificationError(TensorGraphsError):
    """The optimized program computed something else than the original, beyond rounding: a miscompile."""

    exit_code, code = 5, "verification"


class NoPlanError(TensorGraphsError):
    """No executable plan was found: no candidate covers the outputs, or the budget ended first."""

    exit_code, code = 6, "no-plan"


class CostStoreError(TensorGraphsError):
    """A cost store that cannot be used as asked (a wrong path, a shard that fails its checksum on export, …)."""

    exit_code, code = 2, "cost-store"


class WorkerError(TensorGraphsError):
    """A child process died, hung past its limit, or answered nonsense, and the work could not be done without it."""

    code = "worker"


class ExtractionError(TensorGraphsError):
    """An e-graph that cannot be extracted: malformed, negative or NaN costs, or a root without a finite term."""

    exit_code, code = 3, "extraction"


class Interrupted(TensorGraphsError):
    """The user stopped the work; what was best so far is kept and named in the message."""

    exit_code, code = 130, "interrupted"


# ---------------------------------------------------------------- warnings
_heard: ContextVar[list[str] | None] = ContextVar("tensor_graphs_warnings", default=None)


def warned(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of something that is no error: in the report of the optimization that is under way here, else by `warnings.warn`."""
    heard = _heard.get()
    if heard is None:
        warnings.warn(message, category, stacklevel=3)
    else:
        heard.append(message)


@contextmanager
def warnings_into(heard: list[str]) -> Iterator[None]:
    """Collect the messages of `warned` in a list. (`warnings.catch_warnings` would do so for all threads of the process.)"""
    token = _heard.set(heard)
    try:
        yield
    finally:
        _heard.reset(token)
