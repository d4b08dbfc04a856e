"""The CUDA driver from emitted GPU programs: its functions and structures by ctypes.

The source of the classes is copied into emitted programs: each may use `ctypes` and the others only.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...ir.definitions import sources_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class Driver:
    """Functions of the CUDA driver, called by name.

    RuntimeError if a function fails; LookupError if the driver lacks it, or lacks information for direct launches.
    """

    def __init__(self) -> None:
        self.library, self.context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self("cuCtxGetCurrent", ctypes.byref(self.context))

    def __call__(self, name: str, *given: Any) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise LookupError(f"the CUDA driver has no {name}")
        self.checked(function, given, function(*given))

    def checked(self, function: Any, given: Any, code: int) -> None:
        """Check the result `code` of `function(*given)`. In a thread without a context (code 201), set the program's
        context and repeat the call. Raises RuntimeError for any other code but 0, and if the repeated call fails.
        """
        if code == 201 and not self.library.cuCtxSetCurrent(self.context):
            code = function(*given)
        if code:
            raise RuntimeError(f"CUDA error: {function.__name__} failed with code {code}")

    def last_node(self, stream: int) -> int:
        """The graph node of the last launch on a stream that is being captured."""
        status, number, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
        nodes, edges, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p(), ctypes.c_size_t()
        found = [ctypes.byref(x) for x in (status, number, graph, nodes, edges, count)]
        if hasattr(self.library, "cuStreamGetCaptureInfo_v3"):
            self("cuStreamGetCaptureInfo_v3", ctypes.c_void_p(stream), *found)
        else:  # before CUDA 12.3: edges have no data
            self("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), *found[:4], found[5])
        if status.value != 1 or count.value != 1:
            raise LookupError("a launch did not become one node of the graph")
        return int(nodes[0])


class KernelNode(ctypes.Structure):
    """Structure CUDA_KERNEL_NODE_PARAMS of the driver."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class DriverAttribute(ctypes.Structure):
    """Structure CUlaunchAttribute of the driver, with an integer value."""

    _fields_ = (("key", ctypes.c_uint), ("gap", ctypes.c_uint), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class DriverConfig(ctypes.Structure):
    """Structure CUlaunchConfig of the driver."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


def parameter_memory(spans: Sequence[tuple[int, int]]) -> tuple[Any, int, Any]:
    """Memory for kernel parameters at (offset, bytes): the buffer, its start address, and the array of parameter
    addresses.
    """
    memory = ctypes.create_string_buffer(max((a + n for a, n in spans), default=0) + 64)
    base = -(-ctypes.addressof(memory) // 64) * 64  # tensor maps need this alignment
    return memory, base, (ctypes.c_void_p * max(len(spans), 1))(*(base + a for a, _ in spans))


def write_tensor_map(driver: Any, where: int, x: Any, facts: Sequence[Any]) -> None:
    """Write the tensor map of `x`, a tensor descriptor of Triton, to the address `where`, as Triton's launcher does.
    `facts`: swizzle, bytes of an element, type of the elements (numbers of the driver), and sizes of the box."""
    swizzle, itemsize, kind, block = facts
    rank = len(block)
    sizes, steps = (ctypes.c_uint64 * rank)(*x.shape[::-1]), (ctypes.c_uint64 * rank)()
    steps[: rank - 1] = [itemsize * n for n in x.strides[-2::-1]]
    box, ones = (ctypes.c_uint32 * rank)(*block[::-1]), (ctypes.c_uint32 * rank)(*[1] * rank)
    map_, address = ctypes.c_void_p(where), ctypes.c_void_p(x.base.data_ptr())
    driver("cuTensorMapEncodeTiled", map_, kind, rank, address, sizes, steps, box, ones, 0, swizzle, 2, 0)


#: helper name -> source
HELPERS: dict[str, str] = dict(sources_of(__name__))
