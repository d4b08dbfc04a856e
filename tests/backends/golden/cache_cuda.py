"""cache: 2 kernels, estimated 0.0 us (at least 0.0)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import torch


class Replay:
    """A program's calls: inputs are copied to where `launch` reads them, its kernels run on the caller's current stream,
    and the results are copied out (unless they may be overwritten by the next call).

    On a GPU the first call launches kernel by kernel and then records them as a CUDA graph, which later calls replay.
    While the caller records a graph, the kernels are launched one by one and become part of that. An input that is one of
    `inputs` itself is not copied.
    """

    def __init__(self, launch: Callable[[], Any], inputs: Any, device: Any, graph: bool, reuse: bool) -> None:
        self.launch, self.inputs, self.device, self.reuse = launch, inputs, torch.device(device), reuse
        self.gpu = self.device.type == "cuda"
        if self.gpu and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.wanted, self.graph, self.results, self.stream = graph and self.gpu, None, (), None

    def __call__(self, *given: Any) -> Any:
        if self.gpu and torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self(*given)
        with torch.no_grad():
            capturing = self.gpu and torch.cuda.is_current_stream_capturing()
            if self.gpu and not capturing:
                self.follow()
            for place, x in zip(self.inputs, given):
                if x is not place:
                    place.copy_(x)
            results = self.replay() if self.wanted and not capturing else self.launched()
            return results if self.reuse else tuple(r.clone() for r in results)

    def launched(self) -> Any:
        """One run of the kernels. Whatever the caller's rule for products of float32 is, a library rounds no operands here but
        where a kernel asks for it. The rule is the process' own: one program at a time launches kernels under its own."""
        settings = torch.backends.cuda.matmul
        name, strict = ("fp32_precision", "ieee") if hasattr(settings, "fp32_precision") else ("allow_tf32", False)
        with vars(torch.cuda).setdefault("_programs_launching", Lock()):
            before = getattr(settings, name)
            setattr(settings, name, strict)
            try:
                return self.launch()
            finally:
                setattr(settings, name, before)

    def follow(self) -> None:
        """Calls share memory: on another stream than the last one, wait for it."""
        stream = torch.cuda.current_stream()
        if self.stream is not None and stream != self.stream:
            stream.wait_stream(self.stream)
        self.stream = stream

    def replay(self) -> Any:
        """Run the recorded graph; the first time, run without one and record. Recording itself computes nothing. Torch records one
        graph at a time: a second one, in another thread, would end the process."""
        if self.graph is not None:
            self.graph.replay()
            return self.results
        first = self.launched()
        recorded = torch.cuda.CUDAGraph()
        alone = vars(torch.cuda).setdefault("_programs_recording", Lock())  # the same for all programs in a process
        with alone, torch.cuda.graph(recorded, capture_error_mode="thread_local"):
            self.results = self.launched()
        self.graph = recorded
        return first


def device_bytes(size: int, device: Any) -> Any:
    """Bytes on the device for all intermediate values: one allocation."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def kept(states: Any, name: str, shape: Sequence[int], dtype: Any, device: Any) -> Any:
    """A state's tensor: the caller's, else zeros that become the caller's to see."""
    if name not in states:
        states[name] = torch.zeros(shape, dtype=dtype, device=device)
    return states[name]


def scattered(x: Any, index: Any, updates: Any, axis: int, mode: str, out: Any) -> None:
    """x with updates written at the index along one axis. x may be out."""
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    index, updates = index.long().remainder(x.shape[axis]), updates.to(out.dtype)
    if mode == "set":
        out.scatter_(axis, index, updates)
    else:
        reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[mode]
        out.scatter_reduce_(axis, index, updates, reduce)


def tensor_at(memory: Any, offset: int, shape: Sequence[int], dtype: Any, strides: Any = None) -> Any:
    """A tensor in the workspace, row-major unless strides (in elements) are given."""
    if strides is None:
        strides = torch.empty(shape, device="meta").stride()
    return (
        memory[offset:].view(dtype).as_strided(shape, strides)
        if 0 not in shape
        else memory.new_empty(shape, dtype=dtype)
    )


def bind(weights, states=None, device="cuda", graph=True):
    """Makes the program for given weights, and states, which calls update; with `graph`, it is recorded as a CUDA graph."""
    states = {} if states is None else states
    memory = device_bytes(256, device)
    x = torch.empty((1, 4), dtype=torch.float32, device=device)
    position = torch.empty((1, 4), dtype=torch.int64, device=device)
    cache = kept(states, 'cache', (6, 4), torch.float32, device)
    v4 = tensor_at(memory, 0, (1, 4), torch.float32)
    v5 = v4.view((4,))

    def launch():
        """(x: float32[1, 4], position: int64[1, 4]) -> (output: float32[4])"""
        # scatter_elements: float32[6, 4]
        scattered(cache, position, x, 0, 'set', cache)
        # sum: float32[1, 4]
        torch.sum(cache, (0,), True, out=v4)
        return v5,

    return Replay(launch, (x, position), device, graph, False)
