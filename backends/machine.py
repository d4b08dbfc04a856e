"""Describes the GPU that generated kernels are scheduled for: sizes and rates, queried from the driver or stated per
model.

Legality, ranking and emission of GPU kernels read `target`. A worker process that schedules kernels for its parent uses
the parent's machine (`using_machine`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from .. import settings
from ..costdb.keys import rates
from ..costdb.keys.device import gpu_facts
from ..egraph.ir.memo import memo

__all__ = [
    "REFERENCE",
    "Machine",
    "cached_per_machine",
    "of_facts",
    "of_key",
    "shared_per_block",
    "target",
    "using_machine",
]


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Machine:
    """Sizes and rates of a GPU. `capability`: compute capability (90 is sm_90). `multiprocessors`: number of SMs.

    `shared_per_block`, `shared_per_multiprocessor`: bytes of shared memory that a block may ask for, and that the
    blocks of a multiprocessor (SM) share. `registers`, `threads`: 32-bit registers and resident threads of an SM.
    `bytes_per_us`: DRAM bandwidth. `cache_bytes`: L2 cache. `warp`: threads of a warp, which execute in lockstep.
    """

    name: str
    capability: int
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    registers: int
    threads: int
    bytes_per_us: float
    cache_bytes: int
    warp: int = 32

    @property
    def warps(self) -> int:
        """Resident warps of a multiprocessor."""
        return self.threads // self.warp

    @property
    def dynamic_shared(self) -> int:
        """Bytes of dynamic shared memory that a block may use, without 1 KiB for the compiler and alignment."""
        return self.shared_per_block - (1 << 10)


#: The GPU that schedules are made for where there is none and none is named; the ranking models were fitted on it. Its
#: bandwidth is measured.
REFERENCE = Machine("NVIDIA H200", 90, 132, 227 << 10, 228 << 10, 65536, 2048, rates.GPU.bytes_per_us, 50 << 20)

#: Compute capability -> sizes of a multiprocessor, for GPUs that are not in this machine. Source: CUDA C++ Programming
#: Guide, "Technical Specifications per Compute Capability".
SIZES: Mapping[int, Mapping[str, int]] = {
    80: {"shared_per_block": 163 << 10, "shared_per_multiprocessor": 164 << 10, "threads": 2048},
    86: {"shared_per_block": 99 << 10, "shared_per_multiprocessor": 100 << 10, "threads": 1536},
    89: {"shared_per_block": 99 << 10, "shared_per_multiprocessor": 100 << 10, "threads": 1536},
    90: {"shared_per_block": 227 << 10, "shared_per_multiprocessor": 228 << 10, "threads": 2048},
    100: {"shared_per_block": 227 << 10, "shared_per_multiprocessor": 228 << 10, "threads": 2048},
    103: {"shared_per_block": 227 << 10, "shared_per_multiprocessor": 228 << 10, "threads": 2048},
    120: {"shared_per_block": 99 << 10, "shared_per_multiprocessor": 100 << 10, "threads": 1536},
}
ACHIEVED = 0.9  # share of the theoretical DRAM bandwidth that kernels reach

_using: ContextVar[Machine | None] = ContextVar("tensor_graphs_machine", default=None)


def target() -> Machine:
    """The GPU that kernels are generated for: of `using_machine`, the setting `gpu`, this machine, or `REFERENCE`."""
    return _using.get() or _target(settings.planned_gpu())


@contextmanager
def using_machine(machine: Machine) -> Iterator[None]:
    """Context manager in which the function `target` returns the given machine, for emission without that GPU."""
    token = _using.set(machine)
    try:
        yield
    finally:
        _using.reset(token)


def cached_per_machine(size: int) -> Callable[[F], F]:
    """Decorator of a function that depends on the target GPU (`target()`): an LRU cache of up to `size` results.

    Its keys are the GPU and the arguments."""

    def decorate(function: F) -> F:
        @memo(size)
        def known(machine: Machine, *args: Any) -> Any:
            with using_machine(machine):
                return function(*args)

        @wraps(function)
        def called(*args: Any) -> Any:
            return known(target(), *args)

        return cast(F, called)

    return decorate


@lru_cache(maxsize=8)
def _target(key: str) -> Machine:
    if key:
        return of_key(key.partition("|")[0])
    facts = gpu_facts()
    return of_facts(facts) if facts else REFERENCE


def of_key(device: str) -> Machine:
    """Machine of a device key, such as "gpu:NVIDIA H200:sm90:multiprocessors=132".

    Properties that the key lacks are taken from a table by compute capability, else from `REFERENCE`, which is also the
    machine of a key of another format.
    """
    found = re.fullmatch(r"gpu:(.*):sm(\d+):multiprocessors=(\d+)", device)
    if found is None:
        return REFERENCE
    name, capability = found[1], int(found[2])
    known: dict[str, Any] = dict(SIZES.get(capability, {}))
    return replace(REFERENCE, name=name, capability=capability, multiprocessors=int(found[3]), **known)


def shared_per_block(capability: int) -> int:
    """Bytes of shared memory that a block may ask for on GPUs of a compute capability; of an unknown one the least."""
    return SIZES.get(capability, SIZES[86])["shared_per_block"]


def of_facts(facts: Mapping[str, Any]) -> Machine:
    """The machine with the properties of a GPU that its driver reports (number of SMs, memory sizes and others), as
    `costdb.keys.device.gpu_facts` returns them."""
    measured = facts["name"] == REFERENCE.name
    return Machine(
        facts["name"], facts["capability"], facts["multiprocessors"], facts["shared_per_block"],
        facts["shared_per_multiprocessor"], facts["registers"], facts["threads"],
        REFERENCE.bytes_per_us if measured else ACHIEVED * facts["bytes_per_us"], facts["cache_bytes"], facts["warp"],
    )  # fmt: skip
