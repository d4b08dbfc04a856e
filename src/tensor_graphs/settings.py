"""Reads process-wide settings from environment variables, with a context manager for tests and notebooks.

Precedence: argument > `override(...)` > environment variable > default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from numbers import Integral
from typing import Any

from .errors import UsageError


@dataclass(frozen=True)
class Settings:
    """Values of all settings: field NAME is the environment variable TENSOR_GRAPHS_NAME, in capitals."""

    home: str = ""  # folder of caches and the default cost store; empty: the platform's user cache folder
    costdb: str = ""  # folder of the cost store; empty: <home>/costdb
    team: str = ""  # folder or fsspec URL of a team's cost store, read below the own one; empty: none
    starter: str = ""  # folder of shipped measurements below the cost store; empty: the package's own; "none": not used
    backend: str = "auto"  # auto, numpy, torch, c, gpu, cuda, triton, triton-only, generated, pallas
    threads: int = 0  # CPU threads for kernels; 0: all cores
    gpu: str = ""  # plan for a GPU that is not in this machine: its device key "device|driver|toolchain"
    workers: int = 0  # saturation worker processes; 0: one per core, at most 4
    file_memory: int = 0  # memory limit in bytes for parsing an e-graph file; 0: derived from the file's size
    worker_memory: int = 0  # memory limit in bytes of one worker process; 0: derived from the machine's memory
    max_nodes: int = 250_000  # maximum number of operations of a model; larger models are refused on loading
    check_weights: int = 1  # whether weights of saved programs are compared with their digests when read; 0: no
    export_seconds: int = 0  # time limit of torch.export in seconds; 0: derived from the budget


_VARIABLES = [(f.name, f"TENSOR_GRAPHS_{f.name.upper()}", int if f.type == "int" else str) for f in fields(Settings)]
_MOST = dict.fromkeys((name for name, _, kind in _VARIABLES if kind is int), 1 << 62) | {
    "threads": 4096,
    "workers": 4096,
}
"""Largest values of the settings that are integers."""
# the form of the setting `gpu`: a GPU, or a CPU that interprets its kernels
_GPU = re.compile(r"(gpu:[^|]+:sm[1-9][0-9]{0,3}:multiprocessors=[1-9][0-9]{0,4}|interpreter:[^|]+)\|[^|]+\|[^|]+")
_override: ContextVar[Settings | None] = ContextVar("tensor_graphs_settings", default=None)


def current() -> Settings:
    """The current settings: those of an enclosing `override`, else of the environment, else defaults."""
    changed = _override.get()
    if changed is not None:
        return changed
    found: dict[str, Any] = {}
    for name, variable, kind in _VARIABLES:
        text = os.environ.get(variable)
        if text is not None:
            found[name] = _number(variable, text, _MOST[name]) if kind is int else text
    _check_gpu(found.get("gpu", ""))
    return Settings(**found)


def overridden() -> bool:
    """Whether the settings are those of an enclosing `override`; environment variables are ignored then."""
    return _override.get() is not None


def planned_gpu() -> str:
    """Value of the setting `gpu`: device key of a GPU that is not in this machine, for which plans are made; "" if it
    is not set.

    Reads no other setting, because it is called often.
    """
    changed = _override.get()
    return _check_gpu(os.environ.get("TENSOR_GRAPHS_GPU", "")) if changed is None else changed.gpu


@lru_cache(maxsize=8)
def _check_gpu(text: str) -> str:
    """Return the setting `gpu`. Raises UsageError for a text of another form."""
    if text and not _GPU.fullmatch(text):
        raise UsageError(
            f"the setting gpu is {text[:200]!r}", where="TENSOR_GRAPHS_GPU",
            hint="device|driver|toolchain, as `tensor-graphs measure` prints on the machine with the GPU:"
            " gpu:NVIDIA H200:sm90:multiprocessors=132|nvidia-580|torch=...",
        )  # fmt: skip
    return text


def _number(variable: str, text: str, most: int) -> int:
    """Parse an integer setting. UsageError outside 0..most."""
    try:
        number = int(text or "0")
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise UsageError(f"{variable}={text[:80]!r} is no integer within 0..{most}", where="environment")
    return number


def _given(name: str, value: Any) -> Any:
    """The value of a setting given to `override`; a path as text. Raises UsageError for a value of the wrong kind."""
    if name in _MOST:
        if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= _MOST[name]:
            return int(value)
        raise UsageError(f"invalid setting {name}={value!r}", hint=f"{name} is an integer within 0..{_MOST[name]}")
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str):
        return text
    raise UsageError(f"invalid setting {name}={value!r}", hint=f"{name} is a text")


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Context manager with changed settings, for this thread: `with settings.override(backend="numpy"): ...`.

    Raises UsageError for unknown names, values of the wrong kind, and for a `gpu` of another form.
    """
    if unknown := sorted(changes.keys() - {f.name for f in fields(Settings)}):
        raise UsageError(f"no settings are called {unknown}", hint=f"they are {[f.name for f in fields(Settings)]}")
    wanted = replace(current(), **{name: _given(name, value) for name, value in changes.items()})
    _check_gpu(wanted.gpu)
    token = _override.set(wanted)
    try:
        yield current()
    finally:
        _override.reset(token)
