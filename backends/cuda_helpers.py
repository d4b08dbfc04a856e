"""What emitted source contains for kernels of CUDA C++: how they are compiled and launched. The text of the class is copied
into it: it may use `torch`, `cuda.core`, the library's text beside it and `code_folder`, nothing else.
"""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..private import code_folder, private_folder, unsafe_folder
from .short_erf import COARSE, FINE, ShortErf

if TYPE_CHECKING:
    import torch


def _short(name: str, short: ShortErf) -> str:
    """An error function as exact as results of 16 bits need, and x/2 * (1 + erf(x / sqrt(2))), in C++."""
    erf, normal = (
        re.sub(r"\d+\.?\d*(e-?\d+)?", r"\g<0>f", short.horner("u", times)) for times in (1.0, 0.5 * math.sqrt(0.5))
    )
    return (
        f"DEVICE float {name}_erf(float x) {{\n"
        f"    const float y = min(max(x, -{short.limit}f), {short.limit}f), u = y * y * {short.scale!r}f - 1.0f;\n"
        f"    return y * ({erf});\n}}\n"
        f"DEVICE float {name}_gelu(float x) {{\n"
        f"    const float u = min(x * {0.5 * short.scale!r}f * x - 1.0f, 1.0f);\n"
        f"    return x * held_sum(x, {normal}, 0.5f);\n}}\n"
    )


def _shorts() -> str:
    functions = _short("short", FINE) + _short("coarse", COARSE)
    return f"\n// As exact as results of 16 bits, and of bfloat16, need.\nnamespace op {{\n{functions}}}  // namespace op\n"


CUDA_LIBRARY = (
    "".join(
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("cuda_intrinsics.cuh", "cuda_library.cuh")
    )
    + _shorts()
)


class CudaKernel:
    """A kernel of CUDA C++. All of a program are compiled together, when the first of them is called on a device, for what
    the tensors' addresses are multiples of: up to 16 bytes move at once. Calls go to Torch's current stream.

    `early` lets the kernel be started before the one before it has ended, where the GPU can; it waits itself before it reads
    anything. `room` is how many bytes of shared memory it asks for, `beside` what its text needs beside the library. `boxes` are
    (tensor of 16 bits, shape and box as a matrix, elements from row to row if not the columns) of those that it knows as the copy
    unit does.
    """

    known: ClassVar[dict[str, Any]] = {}
    modules: ClassVar[dict[Any, Any]] = {}

    def __init__(
        self, name: str, grid: int, block: int, *, text: str, early: bool = False, room: int = 0, beside: Any = ()
    ) -> None:
        self.name, self.grid, self.block, self.early, self.text, self.room = name, grid, block, early, text, room
        self.beside = beside
        self.ready: dict[Any, Any] = {}
        self.maps: dict[Any, Any] = {}
        self.known[name] = self

    def __call__(self, *tensors: Any, boxes: Any = ()) -> None:
        from cuda.core import launch

        places = [x.data_ptr() for x in tensors]
        aligned = min([16, *(x & -x for x in places if x)])
        key = [*tensors, *(x for x, *_ in boxes)][0].device.index, aligned
        if key not in self.ready:
            self.ready[key] = self.made(*key)
        kernel, config = self.ready[key]
        if boxes:
            self.launch_described(kernel, places, [self.described(*b) for b in boxes])
        else:
            launch(self, config, kernel, *places)

    def described(self, x: Any, shape: tuple[int, int], box: tuple[int, int], apart: int = 0) -> Any:
        """A tensor as a matrix that the copy unit reads or writes boxes of, 128 bytes wide (cuTensorMapEncodeTiled)."""
        from cuda.bindings import driver

        key = x.data_ptr(), shape, box, apart
        if key not in self.maps:
            if len(self.maps) >= 256:  # tensors come and go
                self.maps.clear()
            sizes, steps = [driver.cuuint64_t(n) for n in shape[::-1]], [driver.cuuint64_t(2 * (apart or shape[1]))]
            block, ones = [driver.cuuint32_t(n) for n in box[::-1]], [driver.cuuint32_t(1)] * 2
            failed, found = driver.cuTensorMapEncodeTiled(
                driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, x.data_ptr(), sizes, steps, block, ones,
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )  # fmt: skip
            if failed:
                raise RuntimeError(f"{self.name} cannot read boxes of {tuple(x.shape)}: {failed.name}")
            self.maps[key] = found
        return self.maps[key]

    def launch_described(self, kernel: Any, places: list[int], maps: list[Any]) -> None:
        """A launch with matrices for the copy unit behind the addresses."""
        import ctypes

        from cuda.bindings import driver

        numbers = [ctypes.c_uint64(p) for p in places]
        given = [*(ctypes.addressof(n) for n in numbers), *(m.getPtr() for m in maps)]
        arguments = (ctypes.c_void_p * len(given))(*given)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block, 1, 1
        config.sharedMemBytes, config.hStream = self.room, driver.CUstream(self.__cuda_stream__()[1])
        if self.early:
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        function = driver.CUfunction(int(kernel.handle))
        (failed,) = driver.cuLaunchKernelEx(config, function, ctypes.addressof(arguments), 0)
        if failed:
            raise RuntimeError(f"{self.name} cannot be launched: {failed.name}")

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
        beside = dict.fromkeys(text for kernel in cls.known.values() for text in kernel.beside)
        return "\n".join((CUDA_LIBRARY, *beside, *(kernel.text.lstrip("\n") for kernel in cls.known.values())))

    @classmethod
    def compiled(cls, arch: str, aligned: int = 16) -> Any:
        """All kernels for an architecture such as "sm_90"; what was compiled before is in the user's private folder."""
        from cuda.core import Program, ProgramOptions
        from cuda.core.utils import FileStreamProgramCache

        arch = "sm_90a" if arch == "sm_90" else arch  # with what only this one has
        options = ProgramOptions(std="c++17", arch=arch, define_macro=("BYTES", str(aligned)))
        folder = code_folder("cuda")
        try:
            cache = None if folder is None else FileStreamProgramCache(folder)
        except OSError:  # no place to keep it
            cache = None
        return Program(cls.source(), "c++", options).compile("cubin", cache=cache)


def cuda_text(source: str) -> str:
    """The CUDA C++ that an emitted source holds, complete, as a file for readers and compilers; empty if it holds none."""
    kernels = re.findall(r'= CudaKernel\(.*?text=r"""\n(.*?)"""\)', source, flags=re.DOTALL)
    beside = re.findall(r'^CUDA_(?:ROLES|TILES)\w* = r"""(.*?)"""$', source, flags=re.DOTALL | re.MULTILINE)
    return "\n".join((CUDA_LIBRARY, *beside, *kernels)) if kernels else ""


#: name -> source text.
HELPERS = {
    "CudaKernel": f'CUDA_LIBRARY = r"""{CUDA_LIBRARY}"""\n\n\n{inspect.getsource(CudaKernel).rstrip()}'.replace(
        "ClassVar[dict[str, Any]]", "dict[str, Any]").replace("ClassVar[dict[Any, Any]]", "dict[Any, Any]"),
    **{f.__name__: inspect.getsource(f).rstrip() for f in (code_folder, private_folder, unsafe_folder)},
}  # fmt: skip
