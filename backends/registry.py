"""Backends by name: the built-in ones, and others through the entry point group `tensor_graphs.backends`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module, metadata
from typing import cast

from .. import settings
from ..errors import DeviceUnavailableError, UsageError
from ..extract.kernel import Backend, Template
from .emit import HELPERS

#: name -> module of this folder whose `BACKEND` it is.
BUILT_IN = {"numpy": "numpy", "torch": "torch", "null": "null"}
GROUP = "tensor_graphs.backends"

#: What `select` means by a name: the backends to draw kernels from, in order of preference among equals.
CHOICES = {"auto": ("numpy", "torch"), "numpy": ("numpy",), "torch": ("numpy", "torch"), "null": ("null",)}


@cache
def backends() -> dict[str, Backend]:
    """All backends by name, usable here or not. UsageError where two claim one name."""
    found: dict[str, Backend] = {n: import_module(f".{m}", __package__).BACKEND for n, m in BUILT_IN.items()}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in found:
            raise UsageError(f"two backends are called {entry.name!r}", where=f"entry point {entry.value}")
        found[entry.name] = cast(Callable[[], Backend], entry.load())()
    return found


def backend(name: str) -> Backend:
    """One backend. UsageError lists the known names."""
    known = backends()
    if name not in known:
        raise UsageError(f"no backend is called {name!r}", hint=f"one of auto, {', '.join(sorted(known))}")
    return known[name]


def select(choice: str | None = None) -> list[Backend]:
    """The backends meant by "auto", "numpy", "torch" or a third party's name (None: the setting `backend`).

    "torch" means Torch's kernels beside NumPy's, which share the memory and are the reference for what Torch lacks;
    "auto" is the same where Torch can be used, else NumPy alone. DeviceUnavailableError if a backend that was asked
    for by name cannot be used here.
    """
    name = choice or settings.current().backend
    chosen = [backend(n) for n in CHOICES.get(name, ("numpy", name))]
    usable: list[Backend] = [b for b in chosen if not b.unavailable()]
    if len(usable) > 1:
        usable = [_Restricted(b, b.name, b.device, b.helpers) if b.name == "numpy" else b for b in usable]
    if name != "auto":
        for b in chosen:
            if b.unavailable():
                raise DeviceUnavailableError(
                    f"the backend {b.name} cannot be used: {b.unavailable()}",
                    hint='backend="auto" takes what works here',
                )
    return usable


@dataclass
class _Restricted:
    """NumPy beside another library on the same cores: without products of its own threaded BLAS.

    Two thread pools that take turns slow each other by an order of magnitude (see threads.py), which no measurement of
    single kernels would show.
    """

    base: Backend
    name: str
    device: str
    helpers: Mapping[str, str]

    @cached_property
    def templates(self) -> Sequence[Template]:
        """Kernels that stay on the calling thread."""
        return tuple(t for t in self.base.templates if t.family not in ("contraction", "conv", "attention"))

    def unavailable(self) -> str:
        """As the backend says."""
        return self.base.unavailable()


def describe(chosen: Iterable[Backend]) -> str:
    """What was picked, for the report: `numpy + torch on cpu`."""
    found = list(chosen)
    return f"{' + '.join(b.name for b in found)} on {', '.join(dict.fromkeys(b.device for b in found))}"


def template(backend_name: str, name: str) -> Template:
    """One template of one backend. UsageError if it has none of that name."""
    found = _by_name(backend_name).get(name)
    if found is None:
        raise UsageError(f"the backend {backend_name} has no kernel called {name!r}")
    return found


@cache
def _by_name(backend_name: str) -> dict[str, Template]:
    return {t.name: t for t in backend(backend_name).templates}


@cache
def all_helpers() -> dict[str, str]:
    """Every helper function's source by name: names that emitted code must not use otherwise."""
    found = dict(HELPERS)
    for b in backends().values():
        found |= b.helpers
    return found


def helper_source(names: Iterable[str], setups: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Sources of the helpers named and of those that they mention, in a fixed order, each once."""
    known = all_helpers()
    needed: dict[str, None] = {}
    todo = sorted({*names, *(name for _, name in setups)})
    while todo:
        name = todo.pop(0)
        if name in needed:
            continue
        needed[name] = None
        todo += sorted(set(re.findall(r"(?<![\w.])([A-Za-z_]\w*)\(", known[name])) & set(known) - {name})
    return (known[name] for name in sorted(needed))
