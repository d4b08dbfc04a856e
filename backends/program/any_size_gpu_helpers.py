"""Helper functions of emitted GPU programs with free sizes: one workspace for all sizes, calls by shape.

Their source is copied into emitted programs: each may use `torch` and the other helpers only.
"""

from __future__ import annotations

import inspect
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


class Workspace:
    """One allocation on the device that holds the intermediate values of a call at any size. It grows, by a quarter more
    than asked for; `grown` counts how often, because views of the memory before are then out of date."""

    def __init__(self, device: Any) -> None:
        self.device, self.size, self.grown, self.views = device, -1, 0, {}

    def take(self, size: int) -> dict[Any, Any]:
        """The memory as flat tensors by dtype, of at least `size` bytes."""
        if size > self.size:
            self.size = (size + size // 4 + 4095) // 4096 * 4096
            memory = torch.empty(self.size, dtype=torch.uint8, device=self.device)
            kinds = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                     torch.bfloat16, torch.float32, torch.float64)  # fmt: skip
            self.views, self.grown = {k: memory.view(k) for k in kinds}, self.grown + 1
        return self.views


def device_arrays(weights: Any, device: Any) -> dict[str, Any]:
    """A mapping whose arrays are uploaded when they are first asked for, once for all plans of a program."""

    class Arrays(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            self[name] = found = uploaded(weights[name], device)  # noqa: F821  (a helper of emitted programs)
            return found

    return Arrays()


class CallsBySize:
    """A program's calls. `at(*shapes)` makes the launches for one choice of sizes: a function of the inputs that runs the
    kernels on the current stream and returns new results. Nothing is compiled for it, because kernels take their sizes
    as arguments.

    The launches of the last `KEPT` choices are kept. From the third call at a choice on, its launches are replayed as a
    CUDA graph, with the inputs copied to fixed places and the results copied out; a size that occurs once or twice is
    launched kernel by kernel. While the caller records a graph, the kernels become part of that.

    Inputs that are dense, on the device and at addresses divisible by 16 are read in place; others are copied.
    """

    KEPT, SEEN = 64, 2

    def __init__(self, at: Callable[..., Any], workspace: Any, device: Any, graph: bool) -> None:
        self.at, self.workspace, self.device = at, workspace, torch.device(device)
        self.gpu = self.device.type == "cuda"
        if self.gpu and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.wanted, self.stream, self.grown = graph and self.gpu, None, 0
        self.kept: dict[Any, list[Any]] = {}  # shapes -> [launch, calls, recorded graph, its inputs, its results]

    def __call__(self, *given: Any) -> Any:
        if self.gpu and torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self(*given)
        with torch.no_grad():
            found = self.found(tuple([x.shape for x in given]))
            capturing = self.gpu and torch.cuda.is_current_stream_capturing()
            if self.gpu and not capturing:
                self.follow()
            found[1] += 1
            if not self.wanted or capturing or found[1] <= self.SEEN:
                return self.launched(found[0], [self.readable(x) for x in given])
            if found[2] is None:
                self.record(found, given)
            for place, x in zip(found[3], given):
                place.copy_(x)
            found[2].replay()
            return tuple([r.clone() for r in found[4]])

    def found(self, shapes: Any) -> list[Any]:
        """The entry of a choice of sizes, made if there is none. Entries are dropped if the workspace has grown: their
        launches hold the memory before."""
        found = self.kept.get(shapes)
        if found is None:
            while len(self.kept) >= self.KEPT:
                del self.kept[next(iter(self.kept))]
            launch = self.at(*shapes)
            if self.workspace is not None and self.workspace.grown != self.grown:
                self.kept.clear()
                self.grown = self.workspace.grown
            found = self.kept[shapes] = [launch, 0, None, (), ()]
        return found

    def readable(self, x: Any) -> Any:
        """An input as kernels read it."""
        if x.device != self.device or not x.is_contiguous():
            x = x.to(self.device).contiguous()
        return x.clone() if x.data_ptr() % 16 else x

    def follow(self) -> None:
        """Calls share memory: on another stream than the last one, wait for it."""
        stream = torch.cuda.current_stream()
        if self.stream is not None and stream != self.stream:
            stream.wait_stream(self.stream)
        self.stream = stream

    def launched(self, launch: Any, given: Sequence[Any]) -> Any:
        """One run of the kernels. A library rounds no operands of float32 products here but where a kernel asks for it,
        whatever the caller's rule is; that rule is the process' own, so one program at a time launches under it."""
        settings = torch.backends.cuda.matmul
        name, strict = ("fp32_precision", "ieee") if hasattr(settings, "fp32_precision") else ("allow_tf32", False)
        with vars(torch.cuda).setdefault("_programs_launching", Lock()):
            before = getattr(settings, name)
            setattr(settings, name, strict)
            try:
                return launch(*given)
            finally:
                setattr(settings, name, before)

    def record(self, found: list[Any], given: Sequence[Any]) -> None:
        """Record the launches of a choice of sizes as a graph. Torch records one graph at a time in a process."""
        places = [torch.empty(x.shape, dtype=x.dtype, device=self.device) for x in given]
        recorded = torch.cuda.CUDAGraph()
        alone = vars(torch.cuda).setdefault("_programs_recording", Lock())
        with alone, torch.cuda.graph(recorded, capture_error_mode="thread_local"):
            results = self.launched(found[0], places)
        found[2:] = [recorded, places, results]


#: helper name -> source
HELPERS: dict[str, str] = {
    name: inspect.getsource(value).rstrip()
    for name, value in list(globals().items())
    if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == __name__
}

__all__ = ["HELPERS", "CallsBySize", "Workspace", "device_arrays"]
