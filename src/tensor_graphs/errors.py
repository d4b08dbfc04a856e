"""Defines all errors raised on purpose: one class per situation, each with a message, a location and a hint.

Each class has the exit code that the command line returns for it: 0 ok, 1 internal error, 2 usage, 3 bad or unsupported
model, 4 device unavailable, 5 verification failed, 6 no valid plan within the budget, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from .wording import with_article


def _printable(text: str) -> str:
    """A text with lone surrogates, which names in files may have and no terminal prints, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class TensorGraphsError(Exception):
    """Base of all errors raised on purpose.

    `where`: the file, function or output concerned. `hint`: how to fix it.
    """

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
    """Error for an invalid call or command line: wrong argument, wrong type, missing input."""

    exit_code, code = 2, "usage"


class UnwritableError(UsageError):
    """Error for a file or folder that could not be written: full disk, missing folder, no permission.

    Previous content is kept.
    """

    code = "unwritable"


class ShapeError(UsageError):
    """Error for operands whose shapes or dtypes do not fit the operation. `sizes`: the sizes that disagree, if any."""

    code = "shape"

    def __init__(self, message: str, *, where: str = "", hint: str = "", sizes: Iterable[Any] = ()) -> None:
        super().__init__(message, where=where, hint=hint)
        self.sizes: tuple[Any, ...] = tuple(sizes)


class IndexRangeError(UsageError, IndexError):
    """Error for an index outside of the axis that a program takes elements of."""

    code = "index"


class TraceError(UsageError):
    """Error for a function that cannot be traced.

    It has an unsupported operation on a traced array, or its graph differs from the function.
    """

    code = "trace"


class TraceAttributeError(TraceError, AttributeError):
    """Error for an attribute that neither a traced array nor a NumPy array has."""


class BadModelError(TensorGraphsError):
    """Error for a model file that is missing, truncated, malformed, cyclic or inconsistent."""

    exit_code, code = 3, "bad-model"


class BadWeightsError(BadModelError):
    """Error for a malformed weight file, or a tensor that is missing, duplicated or of another shape than declared."""

    code = "bad-weights"


class TooLargeError(BadModelError):
    """Error for a tensor whose size overflows or exceeds the machine's memory.

    Raised before any allocation where the size is known, else in place of a MemoryError.
    """

    code = "too-large"


class UntrustedModelError(BadModelError):
    """Error for a model format that can run code while loading, opened without `trust=True` (`--trust-model`)."""

    code = "untrusted"


class ExportError(BadModelError):
    """Error for a PyTorch module or function that torch.export could not capture as one graph."""

    code = "export"


class ExportTimeError(BadModelError):
    """Error for a torch.export, or the tracing of a function, that took longer than its time limit."""

    code = "export-time"


class UnsupportedError(TensorGraphsError):
    """Error for operators, dtypes or options that are not supported. `missing` maps each of them to its count."""

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
    """Error for a rewrite rule that is malformed, or refuted by evaluation."""

    exit_code, code = 2, "rule"


class DeviceUnavailableError(TensorGraphsError):
    """Error for a backend or device that was requested by name and is not usable on this machine."""

    exit_code, code = 4, "device-unavailable"


class UnusableKernelsError(DeviceUnavailableError):
    """Error for a program whose kernels of one `backend` cannot run here: the compiler fails or does not end within its
    time, or a module cannot be imported."""

    backend = ""


class DeviceMemoryError(DeviceUnavailableError):
    """Error for a device with too little free memory for a program; computed before any launch."""

    code = "device-memory"


class DeviceFaultError(DeviceUnavailableError):
    """Error for a kernel that faulted; this process cannot use the device any more."""

    code = "device-fault"


class VerificationError(TensorGraphsError):
    """Error for an optimized program that differs from the original beyond rounding: a miscompile."""

    exit_code, code = 5, "verification"


class NoPlanError(TensorGraphsError):
    """Error for a search without an executable plan: no candidate kernels cover the outputs, or the budget ended
    first."""

    exit_code, code = 6, "no-plan"


class CostStoreError(TensorGraphsError):
    """Error for a cost store that cannot be used, for example a wrong path or a failed checksum on export."""

    exit_code, code = 2, "cost-store"


class WorkerError(TensorGraphsError):
    """Error for a necessary worker process that died, exceeded its deadline or sent a malformed reply."""

    code = "worker"


class ExtractionError(TensorGraphsError):
    """Error for an e-graph that cannot be extracted.

    It is malformed, has negative or NaN costs, or a root without a term of finite cost.
    """

    exit_code, code = 3, "extraction"


class KernelError(UsageError):
    """Error for a file of user kernels that is missing, malformed or declares an inconsistent kernel."""

    code = "kernel"


class KernelRefusedError(TensorGraphsError):
    """Error for a user kernel that failed the checks against its reference: which one, at which shapes, how far off."""

    exit_code, code = 5, "kernel-refused"


class KernelMissingError(BadModelError):
    """Error for a saved program that needs a user kernel in Python whose file is missing or has changed."""

    code = "kernel-missing"


class Interrupted(TensorGraphsError):
    """Error for work that the user stopped. The best result so far is kept; the message says where."""

    exit_code, code = 130, "interrupted"


class Unpicklable:
    """Base class of objects that hold loaded code: pickle and `copy.deepcopy` raise UsageError (`kept_by` says what to
    do instead); a `copy.copy` shares all attributes."""

    kept_by: ClassVar[str] = ""  # what to do instead

    def __copy__(self) -> Any:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(f"{with_article(type(self).__name__)} cannot be pickled or copied deeply: it holds loaded code",
                         hint=self.kept_by)  # fmt: skip


# ---------------------------------------------------------------- warnings
_collected: ContextVar[list[str] | None] = ContextVar("tensor_graphs_warnings", default=None)


def warned(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning: into the report of the running optimization, or through `warnings.warn` outside of one."""
    messages = _collected.get()
    if messages is None:
        warnings.warn(message, category, stacklevel=3)
    else:
        messages.append(message)


@contextmanager
def warnings_into(messages: list[str]) -> Iterator[None]:
    """Context manager: messages of warnings issued with `warned` inside it are appended to `messages` instead of being
    shown, in the current `contextvars` context only, so not in other threads.

    (`warnings.catch_warnings` affects all threads.)
    """
    token = _collected.set(messages)
    try:
        yield
    finally:
        _collected.reset(token)
