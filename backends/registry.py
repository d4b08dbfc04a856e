"""Backends by name: the built-in ones, and others through the entry point group `tensor_graphs.backends`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, cast

from .. import settings
from ..egraph import dtypes
from ..errors import DeviceUnavailableError, UsageError
from ..extract.kernel import Backend, Call, Template
from .emit_cuda_helpers import HELPERS as CUDA_HELPERS
from .emit_helpers import HELPERS

#: name -> module of this folder whose `BACKEND` it is.
BUILT_IN = {
    "numpy": "numpy", "torch": "torch", "torch_cuda": "torch_cuda", "triton": "triton", "nvrtc": "cuda_cpp", "c": "c",
    "null": "null",
}  # fmt: skip
GROUP = "tensor_graphs.backends"
Keep = Callable[[Template], bool]

#: What `select` means by a name: the backends to draw kernels from, in order of preference among equals.
CHOICES = {
    "auto": ("numpy", "torch", "c"), "numpy": ("numpy",), "torch": ("numpy", "torch"), "c": ("numpy", "c"),
    "null": ("null",),
    "gpu": ("torch_cuda", "triton", "nvrtc"), "cuda": ("torch_cuda", "nvrtc"),
    "triton": ("triton", "torch_cuda"), "triton-only": ("triton", "torch_cuda"),
    "generated": ("triton", "nvrtc", "torch_cuda"),
}  # fmt: skip
HIDDEN = {"null", "torch_cuda", "nvrtc"}  # parts of other choices, and what serves tests: not named to users


@cache
def backends() -> dict[str, Backend]:
    """All backends by name, usable here or not. UsageError where two claim one name."""
    there = {n: m for n, m in BUILT_IN.items() if find_spec(f".{m}", __package__)}
    found: dict[str, Backend] = {n: import_module(f".{m}", __package__).BACKEND for n, m in there.items()}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in found:
            raise UsageError(f"two backends are called {entry.name!r}", where=f"entry point {entry.value}")
        found[entry.name] = cast(Callable[[], Backend], entry.load())()
    return found


def backend(name: str) -> Backend:
    """One backend. UsageError lists the known names."""
    known = backends()
    if name not in known:
        raise UsageError(
            f"no backend is called {name!r}", hint=f"one of {', '.join(sorted({*CHOICES, *known} - HIDDEN))}"
        )
    return known[name]


def elsewhere(choice: str) -> bool:
    """Whether a choice means kernels for the GPU that the setting `gpu` describes, and there is none here."""
    on_one = any(n in BUILT_IN and backend(n).device == "cuda" for n in CHOICES.get(choice, ()))
    return bool(settings.current().gpu) and on_one and bool(backend("torch_cuda").unavailable())


def select(choice: str | None = None) -> list[Backend]:
    """The backends meant by "auto", "numpy", "torch", "gpu", "cuda", "triton" or a third party's name (None: the setting
    `backend`).

    "torch" means Torch's kernels beside NumPy's, which share the memory and are the reference for what Torch lacks; "c"
    generated C functions beside NumPy's.
    "gpu" means the libraries' kernels on a GPU and all generated ones; "cuda" those generated as CUDA C++, "triton" those
    generated for Triton; "triton-only" draws on these alone, but for views and copies, and "generated" on both. "auto" is "gpu" where there is one,
    else NumPy with all of Torch and C that can be used here. DeviceUnavailableError if a
    backend that was asked for by name cannot be used here: those of a GPU `elsewhere` can, for plans.
    """
    name = choice or settings.current().backend
    if name == "auto" and not backend("torch_cuda").unavailable():
        name = "gpu"
    chosen = [backend(n) for n in CHOICES.get(name, ("numpy", name)) if n == name or n in backends()]
    planned = elsewhere(name)
    usable: list[Backend] = [b for b in chosen if planned or not b.unavailable()]
    if any(b.name == "torch" for b in usable):
        usable = [_Restricted(b, _UNTHREADED) if b.name == "numpy" else b for b in usable]
    if name in ("triton-only", "generated"):
        usable = [_Restricted(b, _MOVES) if b.name == "torch_cuda" else b for b in usable]
    if name != "auto" and not planned:
        for b in (
            chosen[:1] if name in ("gpu", "cuda", "generated") else chosen
        ):  # generated kernels are welcome on a GPU, not demanded
            if b.unavailable():
                raise DeviceUnavailableError(
                    f"the backend {name} cannot be used here: {b.unavailable()}",
                    hint='backend="auto" takes what works here',
                )
    return usable


#: NumPy beside another library on the same cores: without products of its own threaded BLAS. Two thread pools that take
#: turns slow each other by an order of magnitude (see threads.py), which no measurement of single kernels would show.
_UNTHREADED: Keep = lambda t: t.family not in ("contraction", "conv", "attention")

#: What moves or shows values without computing any.
_MOVES: Keep = lambda t: t.family in ("view", "copy")


@dataclass
class _Restricted:
    """Some of a backend's kernels."""

    base: Backend
    keep: Keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    @cached_property
    def templates(self) -> Sequence[Template]:
        """The kernels that are kept."""
        return tuple(filter(self.keep, self.base.templates))


@dataclass
class _Stored:
    """NumPy's kernels where values may lie in 16 bits while kernels reason in float32: those that are given floats of one
    dtype, copies and casts, and casts between equal dtypes as views."""

    base: Backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    @cached_property
    def templates(self) -> Sequence[Template]:
        """The kernels, with what they are restricted to."""
        own = [t if t.family in ("view", "copy") or t.name == "np.cast" else _given(t) for t in self.base.templates]
        return (_SAME_CAST, *own)


#: A cast between floats that are stored in one dtype.
_SAME_CAST = Template(
    "view.cast", "numpy", "cast(x, dtype=dtype)", "{x}", family="view", applies=lambda call: _one_float(call)
)


def _given(template: Template) -> Template:
    before = template.applies
    return replace(template, applies=lambda call: _one_float(call) and (before is None or before(call)))


def _one_float(call: Call) -> bool:
    return len({o.type.dtype for o in call.places.values() if dtypes.is_float(o.type.dtype)}) <= 1


def storing_narrow(chosen: Iterable[Backend]) -> list[Backend]:
    """CPU backends as they serve plans whose values lie in 16 bits while kernels reason in float32 (extract/storage.py)."""
    return [_Stored(b) if b.name == "numpy" else b for b in chosen]


def on_gpu(chosen: Iterable[Backend]) -> bool:
    """Whether backends work in a GPU's memory."""
    return any(b.device == "cuda" for b in chosen)


def eager(chosen: Sequence[Backend]) -> list[Backend]:
    """The backends whose kernels run a graph node by node, as it is written, where `chosen` ones run it best: a library's
    first."""
    return [backend("torch_cuda")] if on_gpu(chosen) else list(reversed(chosen))


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
    extra = [_SAME_CAST] if backend_name == _SAME_CAST.backend else []
    return {t.name: t for t in (*extra, *backend(backend_name).templates)}


@cache
def all_helpers() -> dict[str, str]:
    """Every helper function's source by name: names that emitted code must not use otherwise."""
    found = HELPERS | CUDA_HELPERS
    for b in backends().values():
        found |= b.helpers
    return found


def helper_names(names: Iterable[str], setups: Iterable[tuple[str, str]]) -> list[str]:
    """Names of the given helpers, of those in `setups` (backend, helper), and of all helpers that these call; sorted."""
    known = all_helpers()
    found: set[str] = set()
    todo = {*names, *(name for _, name in setups)}
    while todo:
        found |= todo
        called = {c for name in todo for c in _called(known[name])}
        todo = (called & known.keys()) - found
    return sorted(found)


@cache
def _called(source: str) -> frozenset[str]:
    own = re.sub(r'r""".*?"""', "", source, flags=re.DOTALL)  # text in another language calls no Python helper
    return frozenset(re.findall(r"(?<![\w.])([A-Za-z_]\w*)\(", own))


def helper_source(names: Iterable[str], setups: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Source texts of the helpers in `helper_names`, in that order."""
    known = all_helpers()
    return (known[name] for name in helper_names(names, setups))
