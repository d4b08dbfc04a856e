"""Runtime support in emitted programs for CUDA C++ kernels: NVRTC compilation and launch.

The source text of `CudaKernel` is copied into emitted programs, so the class may use only `torch`, `cuda.core`,
`cuda.bindings` and the CUDA library text defined beside it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ....private import code_folder, private_folder, unsafe_folder
from ...ir.definitions import source_of
from ...ir.short_erf import COARSE, FINE, ShortErf

if TYPE_CHECKING:
    import torch


def _short(name: str, short: ShortErf) -> str:
    """C++ source of `erf(x)` and of GELU `x/2 * (1 + erf(x / sqrt(2)))`, accurate enough for 16-bit results."""
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
    """A CUDA C++ kernel of a program.

    Each is compiled by itself on its first call on a device, once per common pointer alignment of at most 16 bytes,
    which bounds vectorized accesses: a kernel that was measured is found in the cache folder. Launches go to Torch's
    current stream.

    `grid` and `block` are the numbers of blocks and of threads per block. `early` enables programmatic dependent launch
    where the GPU supports it; the kernel then waits for its predecessor before it reads. `room` is the dynamic shared
    memory in bytes, `beside` further library texts that the kernel includes. In a call, `boxes` are the operands
    accessed by TMA: (tensor of 16-bit elements, matrix shape, box shape, row stride in elements if it differs from the
    number of columns).
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
        self.used: Any = None  # key in `modules` of the last launch
        self.known[name] = self

    def __call__(self, *tensors: Any, boxes: Any = ()) -> None:
        from cuda.core import launch

        places = [x.data_ptr() for x in tensors]
        aligned = min([16, *(x & -x for x in places if x)])
        key = [*tensors, *(x for x, *_ in boxes)][0].device.index, aligned
        if key not in self.ready:
            self.ready[key] = self.made(*key)
        self.used = self.name, *key
        kernel, config = self.ready[key]
        if boxes:
            self.launch_described(kernel, places, [self.described(*b) for b in boxes])
        else:
            launch(self, config, kernel, *places)

    def described(self, x: Any, shape: tuple[int, int], box: tuple[int, int], apart: int = 0) -> Any:
        """Tensor map of a matrix for TMA boxes that are 128 bytes wide (cuTensorMapEncodeTiled, 128B swizzle). `apart`
        is the row stride in elements, 0 for a contiguous matrix."""
        from cuda.bindings import driver

        key = x.data_ptr(), shape, box, apart
        if key not in self.maps:
            if len(self.maps) >= 256:  # bounds the cache: tensors come and go
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
        """Launch the compiled kernel on the addresses `places`, with the tensor maps `maps` as further arguments."""
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
        """(protocol version, handle of Torch's current stream): the CUDA stream protocol, by which launches go to that
        stream."""
        return 0, torch.cuda.current_stream().cuda_stream

    def made(self, device: int, aligned: int) -> Any:
        """The compiled kernel and its launch configuration for a device and a pointer alignment in bytes."""
        from cuda.core import Device, LaunchConfig

        Device(device).set_current()
        major, minor = torch.cuda.get_device_capability(device)
        key = self.name, device, aligned
        if key not in self.modules:
            self.modules[key] = self.compiled(f"sm_{major}{minor}", aligned)
        early = {"programmatic_stream_serialization": True} if self.early and major >= 9 else {}
        kernel = self.modules[key].get_kernel(self.name)
        if self.room > 48 << 10:
            from cuda.bindings import driver

            what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (failed, *_) = driver.cuKernelSetAttribute(what, self.room, kernel.handle, driver.CUdevice(device))
            if failed:
                raise RuntimeError(f"{self.name} needs {self.room} bytes of shared memory: {failed.name}")
        if "__cluster_dims__(16," in self.text:  # more than 8 blocks are allowed only if asked for
            from cuda.bindings import driver

            what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            (failed, *_) = driver.cuKernelSetAttribute(what, 1, kernel.handle, driver.CUdevice(device))
            if failed:
                raise RuntimeError(f"{self.name} cannot have clusters of 16 blocks: {failed.name}")
        return kernel, LaunchConfig(grid=self.grid, block=self.block, shmem_size=self.room, **early)

    def source(self) -> str:
        """The complete CUDA C++ source of the kernel."""
        return "\n".join((CUDA_LIBRARY, *self.beside, self.text.lstrip("\n")))

    def compiled(self, arch: str, aligned: int = 16) -> Any:
        """The kernel compiled for an architecture such as "sm_90"; earlier results come from the private cache
        folder."""
        from cuda.core import Program, ProgramOptions
        from cuda.core.utils import FileStreamProgramCache

        arch = "sm_90a" if arch == "sm_90" else arch  # sm_90a: wgmma and setmaxnreg
        options = ProgramOptions(std="c++17", arch=arch, define_macro=("BYTES", str(aligned)))
        folder = code_folder("cuda")
        try:
            cache = None if folder is None else FileStreamProgramCache(folder)
        except OSError:  # no place to keep it
            cache = None
        return Program(self.source(), "c++", options).compile("cubin", cache=cache)


def cuda_text(source: str) -> str:
    """All CUDA C++ in the emitted Python `source`, as one file for readers and compilers; "" if it has no
    CUDA kernels."""
    kernels = re.findall(r'= (?:Sized)?CudaKernel\(.*?text=r"""\n(.*?)"""\)', source, flags=re.DOTALL)
    beside = re.findall(r'^CUDA_(?!LIBRARY\b)\w+ = r"""(.*?)"""$', source, flags=re.DOTALL | re.MULTILINE)
    return "\n".join((CUDA_LIBRARY, *beside, *kernels)) if kernels else ""


#: helper name -> source text
HELPERS = {
    "CudaKernel": f'CUDA_LIBRARY = r"""{CUDA_LIBRARY}"""\n\n\n{source_of(CudaKernel)}'.replace(
        "ClassVar[dict[str, Any]]", "dict[str, Any]").replace("ClassVar[dict[Any, Any]]", "dict[Any, Any]"),
    **{f.__name__: source_of(f) for f in (code_folder, private_folder, unsafe_folder)},
}  # fmt: skip
