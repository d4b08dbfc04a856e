"""Keeps the user kernels that searches use (`tg.use_kernels`), and stores verdicts (admitted, or the check that failed)
under the content of their files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...errors import KernelError, KernelRefusedError
from ...imported import installed
from ...private import code_folder, read_sealed, sealed
from ...wording import with_article
from ...writing.files import replacing_raw
from ..registry import add_kernels, backends
from ..tuning.keys import machine_of
from ..user.declare import BACKENDS, Kernel
from ..user.files import KernelFile, file_of, kernel_file
from ..user.templates import UserKernel, templates_of
from .checks import AdmissionVerdict, Checker

FORMAT = 2  # raise it when the checks change
LASTING = ("admitted", "unavailable", "wrong", "out-of-bounds", "modified-input", "nondeterministic", "malformed")
Say = Callable[[str], None]
_templates: dict[KernelFile, list[UserKernel]] = {}


def use_kernels(*sources: Any, say: Say = lambda message: None) -> list[AdmissionVerdict]:
    """Check kernels, and make them candidates in all later searches of this process; returns the verdicts.

        tg.use_kernels("kernels.py")

    `sources`: paths of Python files, kernels (`tg.kernel`) or modules that declare them. **The files are executed as
    code**, with the rights of this process; the checks find mistakes, they are not a sandbox. Each kernel first runs in
    a child process, on several choices of sizes and values, and is compared with its reference in float64; verdicts are
    stored under the content of the file. `say` receives the name of each kernel that is checked.

    Raises KernelError for a file that is missing or malformed; raises KernelRefusedError if a kernel fails a check:
    then no kernel of its file is used. Kernels whose backend does not work on this machine are left out, with the
    status "unavailable".
    """
    found: list[AdmissionVerdict] = []
    for file, names in _files(sources).items():
        templates, verdicts = _admitted(file, names, say)
        add_kernels(templates, used=True)
        found += verdicts
    return found


def admitted(sources: Sequence[Any]) -> list[UserKernel]:
    """Check the kernels of `sources` (paths of Python files, which are executed; kernels; or modules that declare them)
    and return their templates (kernels' patterns and code), for one search only. Raises KernelError and
    KernelRefusedError like `use_kernels`."""
    found = [t for file, names in _files(sources).items() for t in _admitted(file, names, lambda message: None)[0]]
    add_kernels(found)
    return found


def _files(sources: Iterable[Any]) -> dict[KernelFile, set[str]]:
    """Files of sources -> names of the wanted kernels in each (empty: all kernels)."""
    if isinstance(sources, str | Path):
        raise KernelError(f"kernels={str(sources)!r} is one text", hint="give a list of files: [...]")
    found: dict[KernelFile, set[str]] = {}
    for source in sources:
        if isinstance(source, Kernel):
            found.setdefault(file_of(source), set()).add(source.name)
        elif isinstance(source, ModuleType) and getattr(source, "__file__", None):
            found[kernel_file(str(source.__file__))] = set()
        elif isinstance(source, str | Path):
            found[kernel_file(source)] = set()
        else:
            raise KernelError(
                f"{with_article(type(source).__name__)} is no file of kernels", hint="a path, or a tg.kernel"
            )
    return found


def _admitted(file: KernelFile, names: set[str], say: Say) -> tuple[list[UserKernel], list[AdmissionVerdict]]:
    """Usable templates of a file, and the verdicts. Raises KernelRefusedError if a wanted kernel failed a check."""
    verdicts = [v for v in verdicts_of(file, say=say) if not names or v.kernel in names or not v.language]
    refused = [v for v in verdicts if not v.admitted and v.status != "unavailable"]
    if refused:
        kind = KernelError if all(v.status == "malformed" for v in refused) else KernelRefusedError
        raise kind("; ".join(map(str, refused)), where=str(file.path), hint="`tensor-graphs kernels check FILE`")
    good = {v.kernel for v in verdicts if v.admitted}
    if file not in _templates:
        _templates[file] = templates_of(file)
    known = backends()
    there = [t for t in _templates[file] if t.backend in known and not known[t.backend].unavailable()]
    return [t for t in there if t.kernel.name in good], verdicts


def verdicts_of(
    file: KernelFile, *, interpret: bool = False, again: bool = False, say: Say = lambda message: None
) -> list[AdmissionVerdict]:
    """Verdicts (admitted, or the check that failed) on the kernels of a file: stored ones if the file's content, this
    version's checks and the machine are the same, else from new checks, which are stored. `interpret`: run Triton
    kernels in Triton's interpreter if there is no GPU. `again`: check even if there are stored verdicts. `say` receives
    the name of each kernel that is checked. The file is executed in a child process only."""
    usable = _usable(interpret)
    key = sha256(repr((FORMAT, file.digest, usable, _machines(usable))).encode()).hexdigest()
    if not again and (kept := _kept(key)) is not None:
        return kept
    on_gpu = not usable["torch_cuda"]
    environment = {"TRITON_INTERPRET": "1"} if interpret and not on_gpu else {}
    found = Checker(file, GPU_KIND if on_gpu else "cpu", lambda b: usable[b], environment, say).verdicts()
    if all(v.status in LASTING for v in found):
        _keep(key, found)
    return found


def described(file: KernelFile) -> list[dict[str, Any]]:
    """Name, backend, family, pattern and guards of each kernel of a file, which is executed in a child process only.

    Raises KernelError if that fails.
    """
    found = Checker(file).templates()
    return [
        {"name": t.name, "backend": t.backend, "family": t.family, "pattern": t.pattern, "when": list(t.when),
         "inputs": {n: str(s) for n, s in t.kernel.inputs.items()}} for t in found
    ]  # fmt: skip


def _usable(interpret: bool) -> dict[str, str]:
    """Backend of user kernels -> the reason why it cannot be used here; "" if it can."""
    known = backends()
    names = [b for found in BACKENDS.values() for b in found]
    why = {b: known[b].unavailable() if b in known else f"there is no backend {b}" for b in names}
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" or interpret
    if why["triton"] and interpreted:
        why["triton"] = "" if installed("triton") else why["triton"]
    return why


def _machines(usable: Mapping[str, str]) -> list[Any]:
    return [machine_of(b) for b, why in usable.items() if not why]


def _kept(key: str) -> list[AdmissionVerdict] | None:
    """Stored verdicts; None if there are none, or if they are damaged."""
    folder = code_folder("kernels")
    with suppress(OSError, ValueError, TypeError, KeyError):
        if folder is not None:
            rows = json.loads(read_sealed(folder / f"{key}.json", name=key))
            return [AdmissionVerdict(**{**row, "index": tuple(row["index"])}) for row in rows]
    return None


def _keep(key: str, found: Sequence[AdmissionVerdict]) -> None:
    folder = code_folder("kernels")
    with suppress(OSError):
        if folder is not None:
            with replacing_raw(folder / f"{key}.json", own=True) as file:
                file.write(sealed(json.dumps([v.to_json() for v in found]).encode(), key))


__all__ = ["admitted", "described", "use_kernels", "verdicts_of"]
