"""Emulation on the CPU of the parts of Torch and of the CUDA driver that emitted GPU programs call (driver_host.c)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tensor_graphs.backends.program.helpers import (
    any_size_gpu_helpers,
    any_size_launches,
    cuda_driver,
    gpu_calls,
    gpu_launches,
    library_addresses,
)


def compiled(folder: Path) -> Path:
    """The emulated driver, compiled into a folder as a shared library."""
    made = folder / "driver.so"
    source = Path(__file__).with_name("driver_host.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    return made


def install(library: Any, replace: Callable[..., None]) -> Any:
    """Replace the CUDA driver and Torch's streams and graphs by those of `library`: one stream, captured between
    `begin_capture` and `end_capture`. `replace(object, name, value)` sets an attribute, as pytest's
    `monkeypatch.setattr`. Returns the state of the emulated driver.
    """
    library.end_capture.restype = ctypes.c_void_p
    state = SimpleNamespace(library=library, capturing=False, replays=0, stream=7, waits=0, captured_on=[], kept=[])
    for name in ("launches", "updates", "early"):
        ctypes.c_int.in_dll(library, name).value = 0

    class Graph:
        def __init__(self, keep_graph: bool = False) -> None:
            self.raw = 0

        def raw_cuda_graph(self) -> int:
            return self.raw

        def capture_begin(self, capture_error_mode: str) -> None:
            library.begin_capture()

        def capture_end(self) -> None:
            self.raw = library.end_capture()

        def replay(self) -> None:
            library.cuGraphLaunch(ctypes.c_void_p(self.raw), None)
            state.replays += 1

    @contextmanager
    def graph(recorded: Graph, stream: Any, capture_error_mode: str) -> Iterator[None]:
        state.captured_on.append(stream)
        recorded.capture_begin(capture_error_mode)
        try:
            yield
        finally:
            recorded.capture_end()

    def wait(other: Any) -> None:
        state.waits += 1

    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=wait)
    made = lambda device: SimpleNamespace(**vars(stream), device=device)
    for module in (gpu_calls, gpu_launches, library_addresses, any_size_gpu_helpers, any_size_launches):
        replace(module, "torch", torch, raising=False)
    replace(torch.cuda, "CUDAGraph", Graph)
    replace(torch.cuda, "graph", graph)
    replace(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    replace(torch.cuda, "current_stream", lambda index=None: stream)
    replace(torch.cuda, "device", lambda index: nullcontext())
    replace(torch.cuda, "synchronize", lambda index=None: None)
    replace(torch.cuda, "Stream", made)
    replace(torch.cuda, "_programs_streams", {}, raising=False)
    replace(torch.Tensor, "record_stream", lambda x, used: state.kept.append((x.data_ptr(), state.stream)))
    replace(torch.cuda, "stream", lambda chosen: nullcontext())
    replace(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    replace(torch._C, "_cuda_isCurrentStreamCapturing", lambda: state.capturing, raising=False)
    replace(torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream, raising=False)
    opened = ctypes.CDLL
    replace(ctypes, "CDLL", lambda name, *more: library if "libcuda" in str(name) else opened(name, *more))
    return state


def as_on_gpu(calls: Any) -> Any:
    """The object `calls` (`Calls` of an emitted program on the CPU), with its fields set so that it launches as on a
    GPU.
    """
    calls.gpu, calls.index, calls.wanted = True, -1, True
    return calls


def sized_program(library: Any, text: str, **names: Any) -> Any:
    """The bound calls of a program of every size: `CallsBySize` of `text`, the body of its function `at(x_shape)`,
    which reads the kernels `add` and `doubled`, `workspace`, and `names`. Launches are recorded as on a GPU.
    """
    kernels = {name: SizedKernel(library, name) for name in ("add", "doubled")}
    space = {
        "torch": torch, "Launches": gpu_launches.Launches, "check_sizes": _checked, "device": "cpu", **kernels, **names,
        "Calls": lambda *given, **options: as_on_gpu(gpu_calls.Calls(*given, **options)),
    }  # fmt: skip
    lines = "\n        ".join(text.strip("\n").splitlines())
    source = f"def bind(workspace):\n    def at(x_shape):\n        {lines}\n    return at\n"
    exec(source, space)
    workspace = any_size_gpu_helpers.Workspace("cpu")
    run = any_size_gpu_helpers.CallsBySize(space["bind"](workspace), workspace, "cpu", True, launch_mode="flat")
    run.gpu, run.index, run.own = True, -1, kernels
    return run


def _checked(shapes: Any, wanted: Any, conditions: Any) -> None:
    assert shapes == wanted and all(holds for _, holds in conditions)


class Kernel:
    """A kernel of the emulated driver, by name, with the interface of `CudaKernel`: tensors as arguments, and `boxes`
    for tensor maps.
    """

    early = False
    count = 8  # elements

    def __init__(self, library: Any, name: str) -> None:
        self.library, self.name, self.calls = library, name, 0
        self.function = ctypes.addressof(ctypes.c_char.in_dll(self.library, name))

    def described(self, x: Any, shape: Any, box: Any, apart: int = 0) -> Any:
        """A tensor map, as `CudaKernel.described` makes it."""
        raw = ctypes.create_string_buffer(192)
        memory = (ctypes.c_char * 128).from_buffer(raw, -ctypes.addressof(raw) % 64)
        arrays = ((ctypes.c_uint64 * 2)(*shape[::-1]), (ctypes.c_uint64 * 1)(2 * (apart or shape[1])),
                  (ctypes.c_uint32 * 2)(*box[::-1]), (ctypes.c_uint32 * 2)(1, 1))  # fmt: skip
        given = [ctypes.byref(memory), 1, 2, ctypes.c_void_p(x.data_ptr()), *map(ctypes.byref, arrays), 0, 3, 3, 0]
        assert not self.library.cuTensorMapEncodeTiled(*given)
        return SimpleNamespace(getPtr=lambda: ctypes.addressof(memory), memory=memory)

    def __call__(self, *given: Any, boxes: Any = ()) -> Any:
        values = [*(ctypes.c_uint64(x.data_ptr()) for x in given), *(self.described(*b).memory for b in boxes)]
        self.launched([*values, ctypes.c_int(self.count)])
        return SimpleNamespace(asm={"cubin": self.name.encode()}, metadata=SimpleNamespace(name=self.name))

    def launched(self, values: Any) -> None:
        """Launch with parameters."""
        self.calls += 1
        parameters = (ctypes.c_void_p * 8)(*map(ctypes.addressof, values))
        config = gpu_launches.DriverConfig()
        assert not self.library.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(self.function), parameters, None)


class SizedKernel(Kernel):
    """A kernel that gets its size as an argument."""

    def __call__(self, *given: Any, sizes: Any = (), boxes: Any = (), grid: Any = 1, early: bool = False) -> Any:
        self.launched([*(ctypes.c_uint64(x.data_ptr()) for x in given), *map(ctypes.c_int, sizes),
                       *(self.described(*b).memory for b in boxes)])  # fmt: skip


class Described:
    """A Triton function of the emulated driver that reads a tensor through a descriptor; `swizzle`: that of which its
    compiled kernel tells."""

    __name__ = "described"

    def __init__(self, library: Any, swizzle: int = 3) -> None:
        self.inner, self.compiled = Kernel(library, "described"), 0
        fields = {"swizzle": swizzle, "elem_size": 4, "elem_type": 7, "block_size": [2, 4], "fp4_padded": False}
        facts = SimpleNamespace(name="described", num_warps=4, shared=0, tensordesc_meta=[fields])
        self.made = SimpleNamespace(asm={"cubin": b"described"}, metadata=facts)

    def __getitem__(self, grid: Any) -> Any:
        def launch(out: Any, x: Any, n: int, *, num_warps: int) -> Any:
            raw = ctypes.create_string_buffer(192)
            memory = (ctypes.c_char * 128).from_buffer(raw, -ctypes.addressof(raw) % 64)
            call = lambda name, *given: getattr(self.inner.library, name)(*given)
            cuda_driver.write_tensor_map(call, ctypes.addressof(memory), x, (3, 4, 7, [2, 4]))
            self.inner.launched([ctypes.c_uint64(out.data_ptr()), memory, *map(ctypes.c_int, x.shape),
                                 *map(ctypes.c_int64, x.strides), ctypes.c_int(n)])  # fmt: skip
            self.compiled += 1
            return self.made

        return launch


def described(x: Any, shape: Any, block: Any, swizzle: int = 0, strides: Any = ()) -> Any:
    """A tensor descriptor, as the helper of emitted programs makes it."""
    return SimpleNamespace(base=x, shape=list(shape), strides=list(strides) or [shape[1], 1])
