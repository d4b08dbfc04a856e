"""What emitted source contains for kernels of CUDA C++: how they are compiled and launched. The text of the class is copied
into it: it may use `torch`, `cuda.core` and the library's text beside it, nothing else.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .short_erf import FINE

if TYPE_CHECKING:
    import torch


def _short_erf() -> str:
    """The error function as exact as results of 16 bits need, in C++."""
    power = re.sub(r"\d+\.\d+(e-?\d+)?", r"\g<0>f", FINE.horner("u"))
    return (
        "\n// As exact as results of 16 bits need.\nnamespace op {\nDEVICE float short_erf(float x) {\n"
        f"    const float y = min(max(x, -{FINE.limit}f), {FINE.limit}f), u = y * y * {FINE.scale!r}f - 1.0f;\n"
        f"    return y * ({power});\n}}\n}}  // namespace op\n"
    )


CUDA_LIBRARY = (
    "".join(
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("cuda_intrinsics.cuh", "cuda_library.cuh")
    )
    + _short_erf()
)


class CudaKernel:
    """A kernel of CUDA C++. All of a program are compiled together, when the first of them is called on a device, for what
    the tensors' addresses are multiples of: up to 16 bytes move at once. Calls go to Torch's current stream.

    `early` lets the kernel be started before the one before it has ended, where the GPU can; it waits itself before it reads
    anything. `room` is how many bytes of shared memory it asks for.
    """

    known: ClassVar[dict[str, Any]] = {}
    modules: ClassVar[dict[Any, Any]] = {}

    def __init__(self, name: str, grid: int, block: int, *, text: str, early: bool = False, room: int = 0) -> None:
        self.name, self.grid, self.block, self.early, self.text, self.room = name, grid, block, early, text, room
        self.ready: dict[Any, Any] = {}
        self.known[name] = self

    def __call__(self, *tensors: Any) -> None:
        from cuda.core import launch

        places = [x.data_ptr() for x in tensors]
        aligned = min([16, *(x & -x for x in places if x)])
        key = tensors[0].device.index, aligned
        if key not in self.ready:
            self.ready[key] = self.made(*key)
        kernel, config = self.ready[key]
        launch(self, config, kernel, *places)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Where launches go."""
        return 0, torch.cuda.current_stream().cuda_stream

    def made(self, device: int, aligned: int) -> Any:
        """The compiled kernel and how it is launched."""
        from cuda.core import Device, LaunchConfig

        Device(device).set_current()
        major, minor = torch.cuda.get_device_capability(device)
        if (device, aligned) not in self.modules:
            self.modules[device, aligned] = self.compiled(f"sm_{major}{minor}", aligned)
        early = {"programmatic_stream_serialization": True} if self.early and major >= 9 else {}
        kernel = self.modules[device, aligned].get_kernel(self.name)
        if self.room:
            from cuda.bindings import driver

            what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (failed, *_) = driver.cuKernelSetAttribute(what, self.room, kernel.handle, driver.CUdevice(device))
            if failed:
                raise RuntimeError(f"{self.name} needs {self.room} bytes of shared memory: {failed.name}")
        return kernel, LaunchConfig(grid=self.grid, block=self.block, shmem_size=self.room, **early)

    @classmethod
    def source(cls) -> str:
        """The text of all kernels, complete."""
        return "\n".join((CUDA_LIBRARY, *(kernel.text.lstrip("\n") for kernel in cls.known.values())))

    @classmethod
    def compiled(cls, arch: str, aligned: int = 16) -> Any:
        """All kernels for an architecture such as "sm_90"; what was compiled before is in the user's cache."""
        from cuda.core import Program, ProgramOptions
        from cuda.core.utils import FileStreamProgramCache

        options = ProgramOptions(std="c++17", arch=arch, define_macro=("BYTES", str(aligned)))
        try:
            cache = FileStreamProgramCache()
        except OSError:  # no place to keep it
            cache = None
        return Program(cls.source(), "c++", options).compile("cubin", cache=cache)


def cuda_text(source: str) -> str:
    """The CUDA C++ that an emitted source holds, complete, as a file for readers and compilers; empty if it holds none."""
    kernels = re.findall(r'= CudaKernel\(.*?text=r"""\n(.*?)"""\)', source, flags=re.DOTALL)
    return "\n".join((CUDA_LIBRARY, *kernels)) if kernels else ""


#: name -> source text.
HELPERS = {
    "CudaKernel": f'CUDA_LIBRARY = r"""{CUDA_LIBRARY}"""\n\n\n{inspect.getsource(CudaKernel).rstrip()}'.replace(
        "ClassVar[dict[str, Any]]", "dict[str, Any]").replace("ClassVar[dict[Any, Any]]", "dict[Any, Any]")
}  # fmt: skip
