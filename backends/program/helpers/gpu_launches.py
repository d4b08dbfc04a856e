"""Direct launches of generated kernels: helper classes of emitted GPU programs.

The first call launches each kernel through its own interface (Triton's, `CudaKernel`'s). Then the launches are recorded
into a CUDA graph, and function, configuration and parameters of each are read back from its graph node. From then on a
launch is one call of the driver. Parameters that depend on the caller's memory are known by the position of the tensor
in the recorded call, never by their value.

The source of the classes is copied into emitted programs: each may use `ctypes`, `torch`, the helpers of cuda_driver.py
and the others only.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import finalize

from ...ir.definitions import sources_of
from .cuda_driver import Driver, DriverAttribute, DriverConfig, KernelNode, parameter_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


class DirectLaunch:
    """One kernel launch that is made by the driver, with function, configuration and parameters of a graph node.

    `pointers` has an entry for each argument that is one parameter, `maps` one for each tensor map, in order: (address,
    index of the caller's tensor with this address or -1, offset in that tensor in bytes); None for an argument that is
    no tensor. `early`: programmatic dependent launch.
    """

    def __init__(self, driver: Any, node: int, early: bool, pointers: Sequence[Any], maps: Sequence[Any]) -> None:
        base, spans = self.read(driver, node), self.layout
        self.early = early
        if len(spans) < len(pointers):
            raise LookupError("a launch's parameters cannot be read")
        boxes = [base + a for a, size in spans[len(pointers) :] if size == 128]
        if len(boxes) != len(maps):
            raise LookupError("a launch's parameters are not those of its call")
        self.slots, self.boxes = [], []  # (parameter, number of the caller's tensor, offset)
        self.given, self.boxed = [], []  # (parameter, position in the call) of all tensors
        for k, ((start, size), known) in enumerate(zip(spans, pointers)):
            slot = ctypes.c_uint64.from_address(base + start)
            if known is not None and (size != 8 or slot.value != known[0]):
                raise LookupError("a launch's parameters are not those of its call")
            if known is not None:
                self.given.append((slot, k))
            if known is not None and known[1] >= 0:
                self.slots.append((slot, *known[1:]))
        for k, (box, (_, number, offset)) in enumerate(zip(boxes, maps)):
            self.boxed.append((ctypes.c_void_p(box), k))
            if number >= 0:
                self.boxes.append((ctypes.c_void_p(box), number, offset))
        self.touches, self.recorded = bool(self.slots or self.boxes), self.memory.raw
        self.how.parameters, self.how.extra = ctypes.addressof(self.parameters), None
        self.attribute = DriverAttribute(key=6, value=1)  # programmatic stream serialization
        self.config = DriverConfig(self.how.grid, self.how.block, self.how.shared, None,
                                   ctypes.addressof(self.attribute), int(early))  # fmt: skip
        self.arguments = (ctypes.byref(self.config), self.function, self.parameters, None)
        self.call, self.replace = driver.library.cuLaunchKernelEx, driver.library.cuTensorMapReplaceAddress

    def read(self, driver: Any, node: int) -> int:
        """Read function, configuration and parameters of a graph node; returns the address of the parameters' copy."""
        self.driver, self.node, self.how = driver, ctypes.c_void_p(node), KernelNode()
        driver("cuGraphKernelNodeGetParams_v2", self.node, ctypes.byref(self.how))
        self.function = ctypes.c_void_p(self.how.function)
        if not self.function:
            driver("cuKernelGetFunction", ctypes.byref(self.function), ctypes.c_void_p(self.how.kernel))
        self.layout = self.spans()
        if not self.how.parameters:
            raise LookupError("a launch's parameters cannot be read")
        self.memory, base, self.parameters = parameter_memory(self.layout)
        given = ctypes.cast(self.how.parameters, ctypes.POINTER(ctypes.c_void_p))
        for i, (start, size) in enumerate(self.layout):
            ctypes.memmove(base + start, given[i], size)
        return int(base)

    def spans(self) -> list[tuple[int, int]]:
        """(offset, bytes) of each parameter of the kernel in parameter memory; empty if the driver does not tell."""
        start, size = ctypes.c_size_t(), ctypes.c_size_t()
        kernel = ctypes.c_void_p(self.how.kernel or self.function.value)  # it may be one of a library
        for name, handle in (("cuFuncGetParamInfo", self.function), ("cuKernelGetParamInfo", kernel)):
            found: list[tuple[int, int]] = []
            ask = getattr(self.driver.library, name, None)
            while ask and not ask(handle, ctypes.c_size_t(len(found)), ctypes.byref(start), ctypes.byref(size)):
                found.append((start.value, size.value))
            if found:
                return found
        return []

    def place(self, addresses: Sequence[int]) -> None:
        """Set the parameters that depend on the caller's tensors, given the tensors' addresses."""
        for slot, i, offset in self.slots:
            slot.value = addresses[i] + offset
        for box, i, offset in self.boxes:
            given = box, ctypes.c_void_p(addresses[i] + offset)
            if code := self.replace(*given):
                self.driver.checked(self.replace, given, code)

    def update(self, graph: Any) -> None:
        """Write the parameters into an executable CUDA graph, for its next launches."""
        self.driver("cuGraphExecKernelNodeSetParams_v2", graph, self.node, ctypes.byref(self.how))

    def launch(self) -> None:
        """Launch the kernel on the stream in its configuration."""
        if code := self.call(*self.arguments):
            self.driver.checked(self.call, self.arguments, code)


class StoredLaunch:
    """One launch of a saved program, with the kernel that was compiled when the program was saved.

    `stored` has the configuration, (offset, bytes) and values of the parameters, the indices of those that are
    addresses of a call's tensors, and the number of tensor maps, which come last. `module` is the loaded binary.
    """

    def __init__(self, driver: Any, module: Any, stored: Any) -> None:
        self.driver, self.function = driver, ctypes.c_void_p()
        driver("cuModuleGetFunction", ctypes.byref(self.function), module, stored["name"].encode())
        if stored["shared"] > 48 << 10:
            driver("cuFuncSetAttribute", self.function, ctypes.c_int(8), ctypes.c_int(stored["shared"]))
        cluster = ctypes.c_int()
        driver("cuFuncGetAttribute", ctypes.byref(cluster), ctypes.c_int(11), self.function)  # its blocks
        if cluster.value > 8:  # allowed only if asked for
            driver("cuFuncSetAttribute", self.function, ctypes.c_int(14), ctypes.c_int(1))
        spans = [(start, size) for start, size in stored["layout"]]
        self.memory, base, self.parameters = parameter_memory(spans)
        for (start, size), value in zip(spans, stored["values"]):
            ctypes.memmove(base + start, bytes.fromhex(value), size)
        self.slots = [(ctypes.c_uint64.from_address(base + spans[k][0]), k) for k in stored["pointers"]]
        maps = [base + start for start, size in spans[stored["count"] :] if size == 128]
        self.boxes = [ctypes.c_void_p(a) for a in maps]
        self.attribute = DriverAttribute(key=6, value=1)
        grid, block = ((ctypes.c_uint * 3)(*stored[n]) for n in ("grid", "block"))
        self.config = DriverConfig(
            grid, block, stored["shared"], None, ctypes.addressof(self.attribute), int(stored["early"])
        )
        self.arguments = (ctypes.byref(self.config), self.function, self.parameters, None)

    def launch(self, given: Sequence[Any], boxed: Sequence[Any], stream: int) -> None:
        """Launch the kernel on a call's arguments `given`, and on the tensors `boxed` that it reads by TMA."""
        for slot, k in self.slots:
            slot.value = given[k].data_ptr()
        for box, x in zip(self.boxes, boxed):
            self.driver("cuTensorMapReplaceAddress", box, ctypes.c_void_p(x.data_ptr()))
        self.config.stream = stream
        self.driver("cuLaunchKernelEx", *self.arguments)


class Launches:
    """The launches of a program's generated kernels, in order.

    `of` wraps a kernel's function, so that its launches are recorded; while `direct`, the driver makes them. `stored`:
    (binaries, launches) of a saved program, or None. `variants`: record of the kernels of a program of every size,
    which launches them if the program is a saved one. `given` and `options`: arguments with which the program calls a
    kernel.
    """

    stored: Any = None

    def __init__(self, variants: Any = None) -> None:
        self.variants = variants
        self.loaded: list[Any] = []  # launches of a saved program
        self.binaries: list[Any] = []  # (binary, name of its function) of each launch; None if it is not known
        self.seen: list[Any] = []
        self.table: list[Any] = []
        self.slots: list[Any] = []  # of all launches: (parameter, number of the caller's tensor, offset)
        self.boxes: list[Any] = []
        self.sources: dict[int, Any] = {}
        self.recording = self.direct = False
        self.next = self.stream = self.device = 0
        self.driver: Any = None
        self.known: Any = None  # `KnownLaunches` of a program of every size, while it makes the launches
        self.sites: Any = None  # what it learns from: (kernel, arguments, options) of each recorded launch

    def of(self, kernel: Any) -> Any:
        """A kernel whose launches are recorded; it is called like the kernel itself."""
        return OwnKernel(self, kernel)

    def begin(self, tensors: Mapping[int, Any], device: int) -> None:
        """Start recording launches, which read and write these tensors of the caller, by number, on a stream being
        captured."""
        self.driver, self.device, self.seen, self.recording = Driver(), device, [], True
        self.binaries, self.next = [], 0
        self.sources = {x.untyped_storage()._cdata: (i, x.data_ptr()) for i, x in tensors.items()}

    def keep(self, kernel: Any, given: Sequence[Any], options: Any, early: bool, binary: Any) -> None:
        """Record the last launch, of `kernel` on `given`; `early`: programmatic dependent launch, `binary`: see
        `binaries`."""
        boxed = boxed_tensors(given, options)
        self.binaries.append(binary)
        if self.sites is not None:
            self.sites.append((kernel, given, options))
        node = self.driver.last_node(torch._C._cuda_getCurrentRawStream(self.device))
        pointers = [self.source(x) if isinstance(x, torch.Tensor) else None for x in given if not hasattr(x, "base")]
        while pointers and pointers[-1] is None:  # numbers after tensor maps
            pointers.pop()
        self.seen.append((node, early, pointers, [self.source(x) for x in boxed]))

    def source(self, x: Any) -> tuple[int, int, int]:
        """A tensor as (address, index of the caller's tensor with its memory or -1, offset in that tensor)."""
        where = x.data_ptr()
        number, start = self.sources.get(x.untyped_storage()._cdata, (-1, where))
        return where, number, where - start

    def read(self) -> None:
        """Read the recorded launches from the complete CUDA graph."""
        self.have([DirectLaunch(self.driver, *seen) for seen in self.seen], 0)

    def have(self, table: list[Any], stream: int) -> None:
        """Replace the recorded launches, which later calls make, by `table`, whose configurations contain the stream
        `stream`."""
        self.table, self.stream = table, stream
        self.slots = [x for one in table for x in one.slots]
        self.boxes = [one for one in table if one.boxes]

    def on(self, stream: int) -> None:
        """Set the stream of further launches."""
        if stream != self.stream:
            self.stream = -1  # while they differ: an exception (Ctrl-C) may end this
            for one in self.table:
                one.config.stream = stream
            self.stream = stream

    def restore(self) -> None:
        """Set the parameters of all recorded launches to their recorded values."""
        for one in self.table:
            ctypes.memmove(one.memory, one.recorded, len(one.recorded))

    def run(self, addresses: Sequence[int]) -> None:
        """Make all recorded launches, on the caller's tensors at these addresses."""
        for slot, i, offset in self.slots:
            slot.value = addresses[i] + offset
        for one in self.boxes:
            one.place(addresses)
        for one in self.table:
            if code := one.call(*one.arguments):
                self.driver.checked(one.call, one.arguments, code)

    def load(self) -> None:
        """Load the binaries of a saved program into the current device."""
        driver, modules = Driver(), {}
        binaries, launches = self.stored
        for name, binary in binaries.items():
            modules[name] = ctypes.c_void_p()
            driver("cuModuleLoadData", ctypes.byref(modules[name]), binary)
            unload = driver.library.cuModuleUnload
            finalize(self, unload, ctypes.c_void_p(modules[name].value)).atexit = False
        self.loaded = [StoredLaunch(driver, modules[one["binary"]], one) for one in launches]

    def make(self, *given: Any, **options: Any) -> None:
        """Make the next launch of a saved program, with its stored kernel, on the arguments of this call."""
        if not self.loaded:
            self.load()
        one = self.loaded[self.next]
        self.next += 1
        stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
        one.launch(given, boxed_tensors(given, options), stream)

    def compiled(self) -> list[Any] | None:
        """All recorded launches as (binary, `stored` of a `StoredLaunch`); None if a launch cannot be stored."""
        if len(self.binaries) != len(self.table) or not all(self.binaries):
            return None
        return [
            (binary, {
                "name": name, "grid": list(one.how.grid), "block": list(one.how.block), "shared": one.how.shared,
                "early": bool(one.early), "layout": one.layout, "count": len(seen[2]),
                "values": [ctypes.string_at(one.parameters[i], size).hex() for i, (_, size) in enumerate(one.layout)],
                "pointers": [k for k, known in enumerate(seen[2]) if known is not None],
            })
            for (binary, name), one, seen in zip(self.binaries, self.table, self.seen)
        ]  # fmt: skip

    def again(self, *given: Any, **options: Any) -> None:
        """Make the next recorded launch, on the tensors among the arguments of this call."""
        one = self.table[self.next]
        self.next += 1
        for slot, k in one.given:  # all of them: a library kernel's result has a new address in each call
            slot.value = given[k].data_ptr()
        boxed = boxed_tensors(given, options) if one.boxed else ()
        for box, k in one.boxed:
            one.replace(box, ctypes.c_void_p(boxed[k].data_ptr()))
        one.launch()


def boxed_tensors(given: Sequence[Any], options: Any) -> list[Any]:
    """The tensors of a call that kernels read through tensor maps (TMA)."""
    return [b[0] for b in options["boxes"]] if "boxes" in options else [x.base for x in given if hasattr(x, "base")]


class OwnKernel:
    """A generated kernel of a program: a Triton function, which is indexed by its grid, or a `CudaKernel`."""

    def __init__(self, launches: Any, kernel: Any) -> None:
        self.launches, self.kernel = launches, kernel

    def __getitem__(self, grid: Any) -> Any:
        launches = self.launches
        return launches.again if launches.direct else partial(self.launched, grid)

    def __call__(self, *given: Any, **options: Any) -> None:
        if self.launches.direct:
            self.launches.again(*given, **options)
        elif self.launches.known is None or not self.launches.known.launch(
            self.kernel, options.get("grid"), given, options
        ):
            self.made(self.launches.make if self.launches.stored else self.kernel, *given, **options)

    def launched(self, grid: Any, *given: Any, **options: Any) -> None:
        """Launch a Triton function with a grid and arguments."""
        launches, kernel = self.launches, self.kernel
        if launches.known is not None and launches.known.launch(kernel, grid, given, options):
            return
        if launches.variants is not None and launches.variants.stored is not None:
            name = getattr(kernel, "base", kernel).__name__  # of a function that no compiler has seen
            launch = partial(launches.variants.launch, name, grid)
        else:
            launch = launches.make if launches.stored else kernel[grid]
        self.made(launch, *given, **options)

    def made(self, launch: Any, *given: Any, **options: Any) -> None:
        """Call `launch`: the kernel's own interface or that of its stored binary; and record the launch while
        recording."""
        compiled = launch(*given, **options)
        if self.launches.variants is not None and hasattr(compiled, "asm"):
            self.launches.variants.note(self.kernel.__name__, given, compiled, options.get("launch_pdl", False))
        if self.launches.recording:
            early = bool(options.get("launch_pdl", False) or getattr(self.kernel, "early", False))
            early = early and torch.cuda.get_device_capability()[0] >= 9
            self.launches.keep(self.kernel, given, options, early, self.binary(compiled))

    def binary(self, compiled: Any) -> Any:
        """The launched binary and the name of its function; None if the binary cannot be stored."""
        if hasattr(compiled, "asm"):  # Triton's
            facts = compiled.metadata
            scratch = any(getattr(facts, name, 0) for name in ("global_scratch_size", "profile_scratch_size"))
            return None if scratch or "cubin" not in compiled.asm else (compiled.asm["cubin"], facts.name)
        used = getattr(self.kernel, "modules", {}).get(getattr(self.kernel, "used", None))
        return (used.code, self.kernel.name) if used is not None and isinstance(used.code, bytes) else None


#: helper name -> source
HELPERS: dict[str, str] = dict(sources_of(__name__))
