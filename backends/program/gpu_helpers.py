"""Helper functions of emitted GPU programs: memory, uploads, CUDA graph capture.

Their source is copied into emitted programs: each may use `np`, `torch` and the other helpers only.
"""

from __future__ import annotations

import inspect
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch


def device_bytes(size: int, device: Any) -> Any:
    """Bytes on the device for all intermediate values: one allocation."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def tensor_at(memory: Any, offset: int, shape: Sequence[int], dtype: Any, strides: Any = None) -> Any:
    """A tensor in the workspace, row-major unless strides (in elements) are given."""
    if strides is None:
        strides = torch.empty(shape, device="meta").stride()
    return (
        memory[offset:].view(dtype).as_strided(shape, strides)
        if 0 not in shape
        else memory.new_empty(shape, dtype=dtype)
    )


def uploaded(x: Any, device: Any, row_major: bool = True) -> Any:
    """A NumPy array or a tensor on the device, row-major there or as it lies; bfloat16 arrays go by way of their bits."""
    if isinstance(x, np.ndarray):
        x = x if x.flags.writeable else x.copy(order="K")
        x = (
            torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
            if x.dtype.name == "bfloat16"
            else torch.from_numpy(x)
        )
    return x.to(device).contiguous() if row_major else x.to(device)


def kept(states: Any, name: str, shape: Sequence[int], dtype: Any, device: Any) -> Any:
    """A state's tensor: the caller's, else zeros that become the caller's to see."""
    if name not in states:
        states[name] = torch.zeros(shape, dtype=dtype, device=device)
    return states[name]


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


#: helper name -> source
HELPERS: dict[str, str] = {
    name: inspect.getsource(value).rstrip()
    for name, value in list(globals().items())
    if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == __name__
}
