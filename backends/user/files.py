"""Files of user kernels: loading, which executes their code, and the helper functions by which programs load them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...errors import KernelError, KernelMissingError
from ...plain import Malformed, read_bytes
from ..ir.definitions import source_of
from .declare import Kernel

MAX_FILE_BYTES = 1 << 24  # bytes of a file


@dataclass(frozen=True)
class KernelFile:
    """A file of kernels: its absolute path, and the SHA-256 digest of its content."""

    path: Path
    digest: str


def kernel_file(path: str | Path) -> KernelFile:
    """The `KernelFile` at a path. Raises KernelError if the file cannot be read."""
    whole = Path(os.path.expanduser(path)).absolute()
    try:
        return KernelFile(whole, sha256(read_bytes(whole, MAX_FILE_BYTES)).hexdigest())
    except (OSError, Malformed) as error:
        raise KernelError(f"the file of kernels cannot be read: {error}", where=str(path)) from None


def user_module(path: str, digest: str) -> Any:
    """The module of a file of kernels, executed once for each content. RuntimeError if it is missing or has changed."""
    import hashlib
    import importlib.util
    import sys

    key = f"tensor_graphs_kernels_{digest}"
    if key in sys.modules:
        return sys.modules[key]
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise RuntimeError(f"the file of kernels {path} cannot be read: {error}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise RuntimeError(f"the file of kernels {path} has changed")
    spec = importlib.util.spec_from_file_location(key, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[key] = module
    try:
        exec(compile(content, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def user_kernel(path: str, digest: str, name: str) -> Any:
    """The function of a kernel in a file of kernels. RuntimeError if the file is missing or has changed."""
    return getattr(user_module(path, digest), name).body


def kernels_of(file: KernelFile) -> list[Kernel]:
    """The kernels that a file declares, in order; executes the file.

    Raises KernelError if that fails, or if the file declares no kernels.
    """
    try:
        module = user_module(str(file.path), file.digest)
    except KernelError:
        raise
    except (Exception, SystemExit) as error:
        raise KernelError(f"the file of kernels fails: {type(error).__name__}: {error}", where=str(file.path)) from None
    found = [k for k in vars(module).values() if isinstance(k, Kernel) and str(k.file) == module.__file__]
    if not found:
        raise KernelError(
            "the file declares no kernels", where=str(file.path), hint="@tg.kernel(...) before a function"
        )
    return list(dict.fromkeys(found))


def file_of(kernel: Kernel) -> KernelFile:
    """The file that declares a kernel. Raises KernelError if there is no file, as in a notebook."""
    if not kernel.file.is_file():
        raise KernelError(f"the kernel {kernel.name!r} is in no file", where=str(kernel.file),
                          hint="write the function into a .py file")  # fmt: skip
    return kernel_file(kernel.file)


def require_file(path: str, digest: str, where: str) -> None:
    """Raise KernelMissingError unless a file of kernels with this digest was executed in this process or is at `path`.

    `where`: path of the program, for the message.
    """
    if f"tensor_graphs_kernels_{digest}" in sys.modules:
        return
    try:
        known = kernel_file(path).digest
    except KernelError as error:
        raise KernelMissingError(
            f"the program needs a file of kernels: {error.message}", where=where,
            hint=f"put the file back at {path}, or call tg.use_kernels on a copy of it first",
        ) from None  # fmt: skip
    if known != digest:
        raise KernelMissingError(f"the file of kernels {path} has changed since the program was saved", where=where,
                                 hint="optimize and save the program again")  # fmt: skip


#: Helper name -> source, for emitted programs.
HELPERS = {f.__name__: source_of(f) for f in (user_module, user_kernel)}

__all__ = [
    "HELPERS",
    "KernelFile",
    "file_of",
    "kernel_file",
    "kernels_of",
    "require_file",
    "user_kernel",
    "user_module",
]
