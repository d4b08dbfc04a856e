"""Defines the kernel of a tuning trial that is loaded on a GPU, sets of its operands, and recorded calls of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from ..generate.kernel_text import KernelText
from .gpu_device import Run


@dataclass
class LoadedKernel:
    """The kernel of a tuning trial, loaded from its text. `run`, `prepare`: functions of the module that the text
    defines.

    `scratch`: scratch memory between guard zones. `us`: rough time of a call. Both are set when the kernel first runs.
    `prepared`: operands in the kernel's own layouts, by set of operands; kept during one job, since large weights take
    as long to rearrange as several calls of the kernel.
    """

    text: KernelText
    run: Callable[..., Any]
    prepare: Mapping[str, Callable[..., Any]]
    scratch: Any = None
    us: float = float("nan")
    prepared: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def arguments(self, where: Arguments) -> dict[str, Any]:
        """The operands of the set `where` by name, those that the kernel wants in layouts of its own rearranged."""
        if id(where) not in self.prepared:
            self.prepared[id(where)] = {n: prepare(where.operands[n]) for n, prepare in self.prepare.items()}
        return {**where.operands, **self.prepared[id(where)]}


@dataclass(frozen=True)
class CapturedCalls:
    """Function that replays `calls` calls of a kernel without host overhead (`replay`). `rotating`: whether
    the calls use several copies of the operands in turn, which together exceed the cache."""

    replay: Run
    calls: int
    rotating: bool


@dataclass
class Arguments:
    """One set of operands of a kernel, and the tensors on the device into which the kernel writes its outputs."""

    operands: Mapping[str, Any]
    outputs: Sequence[Any]


@contextlib.contextmanager
def loading(module: Any) -> Iterator[None]:
    """Context manager in which launches of a module's kernels only load them."""
    from triton.runtime.jit import JITFunction

    launched = JITFunction.run

    def load(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        made = launched(self, *args, warmup=True, **options)
        made._init_handles()
        return made

    def load_cuda(self: Any, *tensors: Any, boxes: Any = ()) -> None:
        aligned = min([16, *(p & -p for p in (x.data_ptr() for x in tensors) if p)])
        key = [*tensors, *(x for x, *_ in boxes)][0].device.index, aligned
        self.ready[key] = self.made(*key)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(JITFunction, "run", load))
        if hasattr(module, "CudaKernel"):
            patches.enter_context(mock.patch.object(module.CudaKernel, "__call__", load_cuda))
        yield
