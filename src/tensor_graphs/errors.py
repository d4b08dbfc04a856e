"""All errors raised on purpose: one class per situation, each with a message, a location and a hint.

Each class has the exit code that the command line returns for it: 0 ok, 1 internal error, 2 usage, 3 bad or unsupported
model, 4 device unavailable, 5 verification failed, 6 no valid plan within the budget, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar


def _printable(text: str) -> str:
    """A text with lone surrogates, which names in files may have and no terminal prints, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class TensorGraphsError(Exception):
    """Base of all errors raised on purpose. `where`: the file, function or output concerned. `hint`: how to fix it."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        message, where, hint = map(_printable, (message, where, hint))
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
        """The `error` object of the command line's JSON output: code, message, where, hint."""
        return {"code": self.code, "message": self.message, "where": self.where, "hint": self.hint}


class UsageError(TensorGraphsError):
    """An invalid call or command line: wrong argument, wrong type, missing input."""

    exit_code, code = 2, "usage"


class UnwritableError(UsageError):
    """A file or folder could not be written: full disk, missing folder, no permission. Previous content is kept."""

    code = "unwritable"


class ShapeError(UsageError):
    """Operands whose shapes or dtypes do not fit the operation. `sizes`: the sizes that disagree, if any."""

    code = "shape"

    def __init__(self, message: str, *, where: str = "", hint: str = "", sizes: Iterable[Any] = ()) -> None:
        super().__init__(message, where=where, hint=hint)
        self.sizes: tuple[Any, ...] = tuple(sizes)


class TraceError(UsageError):
    """A function that cannot be traced: an unsupported operation on a traced array, or a graph that differs from the
    function.
    """

    code = "trace"


class TraceAttributeError(TraceError, AttributeError):
    """An attribute that neither a traced array nor a NumPy array has."""


class BadModelError(TensorGraphsError):
    """A model file that is missing, truncated, malformed, cyclic or inconsistent."""

    exit_code, code = 3, "bad-model"


class BadWeightsError(BadModelError):
    """A weight file that is malformed, or a tensor that is missing, duplicated or of another shape than declared."""

    code = "bad-weights"


class TooLargeError(BadModelError):
    """A tensor whose size overflows or exceeds the machine's memory.

    Raised before any allocation where the size is known, else in place of a MemoryError.
    """

    code = "too-large"


class UntrustedModelError(BadModelError):
    """A model format that can run code while loading, opened without `trust=True` (`--trust-model`)."""

    code = "untrusted"


class ExportError(BadModelError):
    """A PyTorch module or function that torch.export could not capture as one graph."""

    code = "export"


class ExportTimeError(BadModelError):
    """torch.export of a module or function took longer than its time limit."""

    code = "export-time"


class UnsupportedError(TensorGraphsError):
    """Operators, dtypes or options that are not supported. `missing` maps each of them to its count."""

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
    """A rewrite rule that is malformed, or refuted by evaluation."""

    exit_code, code = 2, "rule"


class DeviceUnavailableError(TensorGraphsError):
    """A backend or device requested by name is not usable on this machine."""

    exit_code, code = 4, "device-unavailable"


class DeviceMemoryError(DeviceUnavailableError):
    """A device has too little free memory for a program; computed before any launch."""

    code = "device-memory"


class DeviceFaultError(DeviceUnavailableError):
    """A kernel faulted; this process cannot use the device any more."""

    code = "device-fault"


class VerificationError(TensorGraphsError):
    """The optimized program differs from the original beyond rounding: a miscompile."""

    exit_code, code = 5, "verification"


class NoPlanError(TensorGraphsError):
    """No executable plan was found: no candidate kernels cover the outputs, or the budget ended first."""

    exit_code, code = 6, "no-plan"


class CostStoreError(TensorGraphsError):
    """A cost store that cannot be used: wrong path, failed checksum on export, …."""

    exit_code, code = 2, "cost-store"


class WorkerError(TensorGraphsError):
    """A worker process died, exceeded its deadline or answered nonsense, and the work cannot be done without it."""

    code = "worker"


class ExtractionError(TensorGraphsError):
    """An e-graph that cannot be extracted: malformed, negative or NaN costs, or a root without a finite-cost term."""

    exit_code, code = 3, "extraction"


class Interrupted(TensorGraphsError):
    """The user stopped the work. The best result so far is kept; the message says where."""

    exit_code, code = 130, "interrupted"


# ---------------------------------------------------------------- warnings
_heard: ContextVar[list[str] | None] = ContextVar("tensor_graphs_warnings", default=None)


def warned(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning: into the report of the running optimization, or through `warnings.warn` outside of one."""
    heard = _heard.get()
    if heard is None:
        warnings.warn(message, category, stacklevel=3)
    else:
        heard.append(message)


@contextmanager
def warnings_into(heard: list[str]) -> Iterator[None]:
    """Collect the messages of `warned` in a list, for this context only (`warnings.catch_warnings` affects all
    threads).
    """
    token = _heard.set(heard)
    try:
        yield
    finally:
        _heard.reset(token)
