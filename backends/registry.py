"""Registers backends: the built-in ones, and others from the entry point group `tensor_graphs.backends` or
`register`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import cast

from .. import settings
from ..egraph.types import dtypes
from ..errors import DeviceUnavailableError, UsageError
from ..extract.model.backend import Backend
from ..extract.model.kernel import Call, Template
from ..extract.model.library_kernel import LibraryKernel
from .contract import Target
from .device import GPU, HOST, TargetDevice

#: Backend name -> module of this package that defines its `BACKEND`.
BUILT_IN = {
    "numpy": "library.numpy", "torch": "library.torch", "torch_cuda": "library.torch_cuda", "null": "library.null",
    "triton": "triton.backend", "nvrtc": "cuda.backend", "c": "c.backend", "pallas": "pallas.backend",
}  # fmt: skip
HOST_NAMES = ("numpy", "torch", "null", "c")  # built-in backends whose kernels work in the host's memory
GROUP = "tensor_graphs.backends"
Keep = Callable[[Template], bool]

#: Value of the `backend` option -> backends whose kernels are candidates; among equal costs the earlier backend wins.
CHOICES = {
    "auto": ("numpy", "torch", "c"), "numpy": ("numpy",), "torch": ("numpy", "torch"), "c": ("numpy", "c"),
    "null": ("null",),
    "gpu": ("torch_cuda", "triton", "nvrtc"), "cuda": ("torch_cuda", "nvrtc"),
    "triton": ("triton", "torch_cuda"), "triton-only": ("triton", "torch_cuda"),
    "generated": ("triton", "nvrtc", "torch_cuda"),
}  # fmt: skip
#: Choices of which only the first backend is required.
FIRST_ONLY = ("gpu", "cuda", "generated")
# not listed in error messages: parts of other choices, and the backend for tests
HIDDEN = {"null", "torch_cuda", "nvrtc"}


@cache
def backends() -> Mapping[str, Target]:
    """All backends by name, also backends that cannot be used on this machine.

    Raises UsageError if two backends have the same name.
    """
    there = {name: built_in(name) for name in BUILT_IN}
    return {**{name: target for name, target in there.items() if target is not None}, **added()}


@cache
def added() -> Mapping[str, Target]:
    """The backends that are not built in, by name. Raises UsageError if one has the name of another backend."""
    found: dict[str, Target] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in found or entry.name in BUILT_IN:
            raise UsageError(f"two backends are called {entry.name!r}", where=f"entry point {entry.value}")
        found[entry.name] = cast(Callable[[], Target], entry.load())()
    for name, target in _registered.items():
        if name in found:
            raise UsageError(f"two backends are called {name!r}", where="register")
        found[name] = target
    return found


def host_backends() -> list[Target]:
    """All backends whose kernels work in the host's memory; the other built-in ones are not imported."""
    own = [target for name in HOST_NAMES if (target := built_in(name)) is not None]
    return [*own, *(target for target in added().values() if target.device == HOST)]


@cache
def built_in(name: str) -> Target | None:
    """The built-in backend called `name`; None if its package is not installed. Imports the module of this backend, and
    of no other one."""
    if not find_spec(f".{BUILT_IN[name].split('.')[0]}", __package__):
        return None
    found: Target = import_module(f".{BUILT_IN[name]}", __package__).BACKEND
    return found


_registered: dict[str, Target] = {}
on_forget: list[Callable[[], None]] = []  # clear what other modules have cached of the backends


def register(target: Target) -> None:
    """Add a backend for this process. Measuring processes know only built-in backends and entry points.

    Raises UsageError if another backend or a choice of `select` has the same name, or if another device has the name of
    the backend's device.
    """
    if target.name in backends() or target.name in CHOICES:
        raise UsageError(f"two backends are called {target.name!r}", where="register")
    if devices().get(target.device.name, target.device) != target.device:
        raise UsageError(f"two devices are called {target.device.name!r}", where=f"backend {target.name}")
    _registered[target.name] = target
    forget()


def unregister(name: str) -> None:
    """Remove a backend that `register` added."""
    del _registered[name]
    forget()


def forget() -> None:
    """Drop the cached backends and devices, which are collected again on the next use."""
    for clear in (backends.cache_clear, added.cache_clear, devices.cache_clear, _by_name.cache_clear, *on_forget):
        clear()


@cache
def devices() -> Mapping[str, TargetDevice]:
    """The devices of all backends by name. Raises UsageError if two devices have the same name."""
    found: dict[str, TargetDevice] = {}
    for b in backends().values():
        if found.setdefault(b.device.name, b.device) != b.device:
            raise UsageError(f"two devices are called {b.device.name!r}", where=f"backend {b.name}")
    return found


def device(name: str) -> TargetDevice:
    """The device of a name. Raises UsageError for an unknown name. A CPU and a GPU are known without importing the
    backends, because loading a saved program needs no more."""
    if (known := next((d for d in (HOST, GPU) if d.name == name), None)) is not None:
        return known
    if name not in devices():
        raise UsageError(f"no backend works on a device called {name!r}", hint=f"one of {', '.join(sorted(devices()))}")
    return devices()[name]


def find(name: str) -> Target | None:
    """The backend of a name, None if there is none. Other built-in backends are not imported."""
    return built_in(name) if name in BUILT_IN else added().get(name)


def backend(name: str) -> Target:
    """The backend of a name. Raises UsageError for an unknown name; its hint lists the known ones."""
    if (found := find(name)) is None:
        known = sorted({*CHOICES, *backends()} - HIDDEN)
        raise UsageError(f"no backend is called {name!r}", hint=f"one of {', '.join(known)}")
    return found


def is_planning_only(choice: str) -> bool:
    """Whether a backend choice is for planning only, because it needs the GPU that the setting `gpu` describes and this
    machine has none."""
    on_one = any(n in BUILT_IN and backend(n).device.on_gpu for n in CHOICES.get(choice, ()))
    return bool(settings.current().gpu) and on_one and bool(backend("torch_cuda").unavailable())


def select(choice: str | None = None) -> list[Target]:
    """The backends of a choice.

    The choice is "auto", "numpy", "torch", "c", "gpu", "cuda", "triton", "triton-only", "generated" or the name of
    another backend. None means the setting `backend`. "torch" adds Torch's CPU kernels to NumPy's (both work on the
    same memory; NumPy covers ops that Torch lacks), "c" adds generated C functions to NumPy's. "gpu" is Torch's GPU
    library kernels, Triton and CUDA C++; "cuda" omits Triton, "triton" omits CUDA C++. "triton-only" and
    "generated" take only views and copies from the library. "auto" is "gpu" if a GPU is usable, else NumPy, and
    Torch and C if they are usable. Another backend is combined with NumPy if both work in the host's memory. Raises
    DeviceUnavailableError if a required backend is unusable here, unless the choice is for planning only
    (`is_planning_only`).
    """
    name = choice or settings.current().backend
    if name == "auto" and not backend("torch_cuda").unavailable():
        name = "gpu"
    chosen = [backend(n) for n in CHOICES.get(name) or _with_host(name) if n == name or find(n) is not None]
    planned = is_planning_only(name)
    usable = [b for b in chosen if planned or not b.unavailable()]
    if any(b.name == "torch" for b in usable):
        usable = [b.restricted(_UNTHREADED) if b.name == "numpy" else b for b in usable]
    if name in ("triton-only", "generated"):
        usable = [b.restricted(_MOVES) if b.name == "torch_cuda" else b for b in usable]
    if name != "auto" and not planned:
        for b in chosen[:1] if name in FIRST_ONLY else chosen:  # on a GPU, only the first backend is required
            if b.unavailable():
                raise DeviceUnavailableError(
                    f"the backend {name} cannot be used here: {b.unavailable()}",
                    hint='backend="auto" takes what works here',
                )
    return usable


#: NumPy beside Torch: without the kernels that use NumPy's own BLAS threads. Two thread pools that alternate slow each
#: other by an order of magnitude (see threads.py); measurements of single kernels do not show this.
_UNTHREADED: Keep = lambda t: t.family not in ("contraction", "conv", "attention")

#: Views and copies only.
_MOVES: Keep = lambda t: t.family in ("view", "copy")


#: A cast whose operand and result have the same storage dtype: a view.
_SAME_CAST = LibraryKernel(
    "view.cast", "numpy", "cast(x, dtype=dtype)", "{x}", family="view", applies=lambda call: _one_float(call)
)


def _one_float(call: Call) -> bool:
    return len({o.type.dtype for o in call.buffers.values() if dtypes.is_float(o.type.dtype)}) <= 1


def backends_storing_narrow(chosen: Iterable[Backend]) -> list[Backend]:
    """The CPU backends adapted to plans that store values in a 16-bit float while the compute dtype is float32
    (extract/model/storage_dtypes.py).

    NumPy kernels except views, copies and casts then apply only to float operands and outputs of one dtype, and a cast
    between equal dtypes is a view. Other backends are returned unchanged.
    """
    return [_of_one_float(b) if b.name == "numpy" else b for b in chosen]


def _of_one_float(base: Backend) -> Backend:
    own = [t if t.family in ("view", "copy") or t.name == "np.cast" else _given(t) for t in base.templates]
    return base.with_templates((_SAME_CAST, *own))


def _given(template: Template) -> Template:
    before = template.applies
    assert isinstance(template, LibraryKernel)  # NumPy has no others
    return replace(template, applies=lambda call: _one_float(call) and (before is None or before(call)))


def _with_host(name: str) -> tuple[str, ...]:
    """NumPy and another backend, if both work in the host's memory; else the other backend alone."""
    return ("numpy", name) if backend(name).device == HOST else (name,)


def on_gpu(chosen: Iterable[Backend]) -> bool:
    """Whether any of the backends works in GPU memory."""
    return any(b.device.on_gpu for b in chosen)


def unfused_backends(chosen: Sequence[Backend]) -> list[Backend]:
    """Backends that run the graph as written, one library kernel per node, in order of preference.

    `chosen`: the backends of a choice (`select`). On a GPU the result is Torch's GPU library alone; on a CPU libraries
    come before backends that generate kernels.
    """
    if on_gpu(chosen):
        return [backend("torch_cuda")]
    return [b for generates in (False, True) for b in reversed(chosen) if b.generates == generates]


def describe(chosen: Iterable[Backend]) -> str:
    """Names of backends and their device for the report, such as `numpy + torch on cpu`."""
    found = list(chosen)
    return f"{' + '.join(b.name for b in found)} on {', '.join(dict.fromkeys(b.device.name for b in found))}"


# ---------------------------------------------------------------- user kernels
_user: dict[str, dict[str, Template]] = {}  # backend -> user kernels that jobs and stored plans may name
_used: dict[str, dict[str, Template]] = {}  # those of them that are candidates in every search


def add_kernels(added: Iterable[Template], *, used: bool = False) -> None:
    """Make user kernels known by their names, in place of kernels of the same names.

    `used`: whether they become candidates in every search.
    """
    for t in added:
        _user.setdefault(t.backend, {})[t.name] = t
        if used:
            _used.setdefault(t.backend, {})[t.name] = t


def drop_kernels() -> None:
    """Remove all user kernels that `add_kernels` added."""
    _user.clear()
    _used.clear()


def used_kernels() -> list[Template]:
    """The user kernels that are candidates in every search."""
    return [t for by_name in _used.values() for t in by_name.values()]


def with_kernels(chosen: Iterable[Target], added: Iterable[Template]) -> list[Target]:
    """The backends with further library kernels, each added to its backend.

    Kernels whose backend is not among `chosen` are left out.
    """
    by_name = {(t.backend, t.name): t for t in added}
    found = []
    for b in chosen:
        own = [t for (name, _), t in by_name.items() if name == b.name]
        found.append(b.with_templates((*b.templates, *own)) if own else b)
    return found


def template(backend_name: str, name: str) -> Template:
    """The library kernel `name` of a backend, or the user kernel of that name. Raises UsageError if there is none."""
    found = _user.get(backend_name, {}).get(name) or _by_name(backend_name).get(name)
    if found is None:
        raise UsageError(f"the backend {backend_name} has no kernel called {name!r}")
    return found


@cache
def _by_name(backend_name: str) -> dict[str, Template]:
    extra = [_SAME_CAST] if backend_name == _SAME_CAST.backend else []
    return {t.name: t for t in (*extra, *backend(backend_name).templates)}
