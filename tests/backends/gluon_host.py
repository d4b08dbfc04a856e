"""Interpreter of the Gluon language on a CPU, complete enough to run warp-specialized kernels.

Each warp role (partition) is a thread; mbarriers count arrivals and bytes as on Hopper. An asynchronous matrix product
is computed when it is waited for, so that a kernel that reuses its operands' memory too early gives wrong results.
Tensors have a layout; an operation on tensors of different layouts raises an error, as in the compiler.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

PATIENCE = 20.0  # seconds that a role waits for another one before it fails
_here = threading.local()


@dataclass(frozen=True)
class Layout:
    """A layout by its name and arguments."""

    name: str
    args: tuple[Any, ...] = ()


def _layout(name: str) -> Callable[..., Layout]:
    def made(*args: Any, **named: Any) -> Layout:
        return Layout(name, tuple(map(str, args)) + tuple(f"{k}={v}" for k, v in named.items()))

    return made


def _slice(dim: int, parent: Layout) -> Layout:
    return Layout("slice", (dim, parent))


class Tensor:
    """Array of numbers in a layout; operands of binary operations must have equal layouts."""

    def __init__(self, data: Any, layout: Layout) -> None:
        self.data, self.layout = np.asarray(data), layout

    def _with(self, other: Any, op: Callable[[Any, Any], Any], turned: bool = False) -> Tensor:
        if isinstance(other, Tensor):
            assert other.layout == self.layout, f"{self.layout} meets {other.layout}"
            other = other.data
        elif isinstance(other, float) and self.data.dtype.kind == "f":
            other = self.data.dtype.type(other)
        with np.errstate(divide="ignore", invalid="ignore"):  # of rows beyond the last, which are not stored
            return Tensor(op(other, self.data) if turned else op(self.data, other), self.layout)

    def __getitem__(self, at: tuple[Any, ...]) -> Tensor:
        name, (dim, parent) = self.layout.name, self.layout.args
        assert name == "slice" and at[dim] is None, "an axis that the layout does not leave out"
        return Tensor(self.data[at], parent)

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.data.astype(dtype), self.layout)


def _operators() -> None:
    names = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
             "mod": np.mod, "and": np.logical_and, "or": np.logical_or}  # fmt: skip
    for name, op in names.items():
        setattr(Tensor, f"__{name}__", lambda a, b, op=op: a._with(b, op) if not isinstance(b, Pointer) else b + a)
        setattr(Tensor, f"__r{name}__", lambda a, b, op=op: a._with(b, op, True))
    compares = {
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }
    for name, op in compares.items():
        setattr(Tensor, f"__{name}__", lambda a, b, op=op: a._with(b, op))
    Tensor.__neg__ = lambda a: Tensor(-a.data, a.layout)  # type: ignore[attr-defined]


_operators()


@dataclass
class Pointer:
    """Pointer to an element of an array, or a tensor of pointers."""

    array: np.ndarray
    at: Any = 0

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.array, more if isinstance(self.at, int) and self.at == 0 else self.at + more)


@dataclass
class Shared:
    """A buffer in shared memory."""

    data: np.ndarray

    def index(self, i: int) -> Any:
        found = self.data[i]
        return found if isinstance(found, Barrier) else found[0] if found.dtype == object else Shared(found)

    def reinterpret(self, dtype: Any, shape: list[int], layout: Layout) -> Shared:
        assert dtype == self.data.dtype
        return Shared(self.data.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.data.transpose(order))

    def load(self, layout: Layout) -> Tensor:
        return Tensor(self.data.copy(), layout)

    def store(self, value: Tensor) -> None:
        assert value.data.dtype == self.data.dtype
        self.data[...] = value.data


@dataclass
class Barrier:
    """An mbarrier in shared memory: a phase ends when all expected arrivals and bytes have been counted."""

    count: int = 0
    arrived: int = 0
    bytes: int = 0
    phase: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def step(self, arrived: int, more: int) -> None:
        with self.changed:
            self.arrived, self.bytes = self.arrived + arrived, self.bytes + more
            assert self.arrived <= self.count, "more arrivals than were announced"
            if self.arrived == self.count and self.bytes == 0:
                self.arrived, self.phase = 0, self.phase + 1
            self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase & 1 != parity, PATIENCE), "roles wait for each other"


@dataclass
class Descriptor:
    """A TMA descriptor: a matrix in global memory whose blocks are copied asynchronously."""

    matrix: np.ndarray
    block: tuple[int, ...]
    layout: Any


def _described(x: Any, shape: list[int], strides: list[int], block: list[int], layout: Any) -> Descriptor:
    flat = np.asarray(x.detach()).reshape(-1)
    assert strides[-1] == 1 and all(s * flat.itemsize % 16 == 0 for s in strides[:-1]) and len(block) == len(shape) <= 5
    bytes_ = [s * flat.itemsize for s in strides]
    return Descriptor(np.lib.stride_tricks.as_strided(flat, shape, bytes_, writeable=False), tuple(block), layout)


def _copy(desc: Descriptor, at: list[int], barrier: Barrier, to: Shared) -> None:
    """Zeros come from beyond the edges."""
    assert desc.block == to.data.shape and len(at) == len(desc.block)
    inside = [(max(a, 0), min(a + n, size)) for a, n, size in zip(at, desc.block, desc.matrix.shape)]
    to.data[...] = 0
    if all(low < high for low, high in inside):
        place = tuple(slice(low - a, high - a) for (low, high), a in zip(inside, at))
        to.data[place] = desc.matrix[tuple(slice(*part) for part in inside)]
    barrier.step(0, -to.data.nbytes)


class Pending:
    """An asynchronous matrix product (wgmma), computed when it is waited for."""

    def __init__(self, a: Any, b: Shared, acc: Any, use: bool) -> None:
        self.a, self.b, self.acc, self.use, self.value = a, b, acc, use, None

    def finish(self) -> None:
        if self.value is None:
            acc = self.acc.value if isinstance(self.acc, Pending) else self.acc
            product = self.a.data.astype(np.float32) @ self.b.data.astype(np.float32)
            self.value = Tensor(product + acc.data if self.use else product, acc.layout)


def _mma(a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
    assert is_async and a.data.dtype == b.data.dtype != np.float32
    found = Pending(a, b, acc, use_acc)
    _here.queue = [*getattr(_here, "queue", []), found]
    return found


def _mma_wait(pendings: int = 0, deps: list[Pending] = ()) -> Any:  # type: ignore[assignment]
    done, _here.queue = (_here.queue[:-pendings], _here.queue[-pendings:]) if pendings else (_here.queue, [])
    for p in done:
        p.finish()
    found = [d if d.value is None else d.value for d in deps]  # a copy that has not ended is no tensor yet
    return found[0] if len(found) == 1 else tuple(found)


def _reduced(op: Callable[..., Any]) -> Callable[[Tensor, int], Tensor]:
    return lambda x, axis: Tensor(op(x.data, axis=axis), _slice(axis, x.layout))


def _unary(op: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: Tensor(op(x.data).astype(x.data.dtype), x.layout)


def _reduce(x: Tensor, axis: int, combine: Any) -> Tensor:
    """By one of the functions that a kernel's text defines for it."""
    return _reduced({"larger": np.max, "smaller": np.min}[combine.__name__])(x, axis)


def _binary(op: Callable[[Any, Any], Any], plain: Callable[[int, int], int]) -> Callable[..., Any]:
    return lambda a, b, nan=None: (
        a._with(b, op) if isinstance(a, Tensor) else b._with(a, op) if isinstance(b, Tensor) else plain(a, b)
    )


def _where(c: Tensor, x: Any, y: Any) -> Tensor:
    for v in (x, y):
        assert not isinstance(v, Tensor) or v.layout == c.layout
    x, y = (v.data if isinstance(v, Tensor) else np.float32(v) for v in (x, y))
    return Tensor(np.where(c.data, x, y), c.layout)


def _allocate(dtype: Any, shape: list[int], layout: Any) -> Shared:
    if dtype == "barrier":
        found = np.empty(shape, object)
        for i in np.ndindex(*shape):
            found[i] = Barrier()
        return Shared(found)
    return Shared(np.full(shape, np.nan, dtype))


def _specialize(roles: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]) -> None:
    """All roles at once; the first one's failure is the kernel's."""
    assert len(warps) == len(registers) == len(roles) - 1
    failed: list[BaseException] = []
    program = _here.program

    def one(role: Any, args: tuple[Any, ...]) -> None:
        _here.program = program
        try:
            role(*args)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=role, daemon=True) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class Function:
    """A Gluon function, called by other functions or launched over a grid."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int) -> None:
            given = [Pointer(a.detach().numpy().reshape(-1)) if hasattr(a, "detach") else a for a in args]
            for program in range(grid[0]):
                _here.program = program
                self.function(*given)

        return launch


class Number(float):
    """A scalar, which is compatible with tensors of every layout."""

    def to(self, dtype: Any) -> Number:
        return self


def _load(p: Pointer, mask: Tensor | None = None, other: Any = None) -> Any:
    if isinstance(p.at, int):
        return Number(p.array[p.at])
    if mask is None:
        return Tensor(p.array[p.at.data], p.at.layout)
    assert mask.layout == p.at.layout
    there = np.broadcast_to(mask.data, p.at.data.shape)
    return Tensor(np.where(there, p.array[np.where(there, p.at.data, 0)], p.array.dtype.type(other)), p.at.layout)


def _store(p: Pointer, value: Tensor, mask: Tensor | None = None) -> None:
    assert p.at.layout == value.layout and p.array.dtype == value.data.dtype
    assert mask is None or mask.layout == value.layout
    there = np.broadcast_to(True if mask is None else mask.data, value.data.shape)
    p.array[p.at.data[there]] = value.data[there]


def _filled(shape: list[int], value: float, dtype: Any, layout: Layout) -> Tensor:
    return Tensor(np.full(shape, value, dtype), layout)


@contextmanager
def host(multiprocessors: int) -> Iterator[None]:
    """Context manager in which Gluon's modules are replaced by this interpreter, and kernels are emitted for a GPU
    with `multiprocessors` SMs.
    """
    pytest.importorskip(
        "torch"
    )  # imported here: modules first imported below are unloaded afterwards, and importing Torch twice crashes
    pytest.importorskip("triton.language")  # whole, before its modules are replaced
    language = SimpleNamespace(
        constexpr=int, float32=np.float32, float16=np.float16, int32=np.int32, int64="barrier", static_range=range,
        arange=lambda a, b, layout: Tensor(np.arange(a, b), layout), full=_filled,
        zeros=lambda shape, dtype, layout: _filled(shape, 0, dtype, layout), program_id=lambda axis: _here.program,
        load=_load, store=_store, where=_where, convert_layout=lambda x, layout: Tensor(x.data, layout),
        max=_reduced(np.max), reduce=_reduce, sum=_reduced(np.sum), maximum=_binary(np.maximum, max), minimum=_binary(np.minimum, min),
        exp2=_unary(np.exp2), exp=_unary(np.exp), log=_unary(np.log), abs=_unary(np.abs), sqrt=_unary(np.sqrt), rsqrt=_unary(lambda x: 1 / np.sqrt(x)),
        allocate_shared_memory=_allocate, shared_memory_descriptor=Shared, warp_specialize=_specialize, SliceLayout=_slice,
        **{n: _layout(n) for n in ("NVMMADistributedLayout", "BlockedLayout", "DotOperandLayout", "NVMMASharedLayout")},
    )  # fmt: skip
    barriers = SimpleNamespace(
        MBarrierLayout=_layout("barrier"), init=lambda b, count: setattr(b, "count", count), wait=lambda b, p: b.wait(p),
        arrive=lambda b: b.step(1, 0), expect=lambda b, n: b.step(1, n),
    )  # fmt: skip
    hopper = SimpleNamespace(
        fence_async_shared=lambda: None, mbarrier=barriers, tma=SimpleNamespace(async_copy_global_to_shared=_copy),
        warpgroup_mma=_mma, warpgroup_mma_wait=_mma_wait, TensorDescriptor=_described,
    )  # fmt: skip
    root = "triton.experimental"
    contents = {
        root: {"gluon": SimpleNamespace(jit=Function)}, f"{root}.gluon": {"language": language, "jit": Function},
        f"{root}.gluon.language": vars(language), f"{root}.gluon.language.nvidia": {}, f"{root}.gluon.nvidia": {},
        f"{root}.gluon.language.nvidia.hopper": vars(hopper), f"{root}.gluon.nvidia.hopper": vars(hopper),
    }  # fmt: skip
    modules = {}
    for name, values in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(values)

    from tensor_graphs.backends.machine import target
    from tensor_graphs.backends.triton.warp_specialized import attention as gluon_source

    few = replace(target(), multiprocessors=multiprocessors)
    with patch.dict(sys.modules, modules), patch.object(gluon_source, "target", lambda: few):
        yield
