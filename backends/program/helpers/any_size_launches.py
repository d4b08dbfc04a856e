"""Launches at new sizes, made from launches recorded at other sizes: helper classes of emitted programs with free
sizes.

A kernel's own interface (Triton's, `CudaKernel`'s) and recording a CUDA graph cost hundreds of microseconds at every
new size. The function of a kernel and the layout of its parameters are the same at all sizes of a form. So calls at a
new size write the parameters of each launch and launch by the driver. The first call at a size writes them into memory
of the template, since many sizes never recur. The second call writes them into memory of its own, and later calls
repeat its launches.

The source of the classes is copied into emitted programs: each may use `ctypes`, `torch`, the helpers of cuda_driver.py
and gpu_launches.py, `Struct`, and the others only.
"""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import TYPE_CHECKING, Any

from ...ir.definitions import sources_of
from .cuda_driver import DriverConfig, write_tensor_map
from .gpu_launches import DirectLaunch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


class LaunchTemplate:
    """A recorded launch, as a template for launches of the same kernel at other sizes.

    `values` are the arguments of the recorded call: tensors, integers and tensor descriptors of Triton; `boxes` are the
    operands accessed by TMA. `source` gives (address, index of the caller's tensor or -1, offset) of a tensor. `maps`:
    facts for the tensor maps of the descriptors (`write_tensor_map`); without them, launches with other descriptors are
    refused. Raises LookupError if the parameters are not these arguments in order, or if an address is no multiple of
    16 bytes (another variant of the kernel).
    """

    def __init__(
        self, one: Any, values: Sequence[Any], boxes: Sequence[Any], source: Callable[[Any], Any], maps: Sequence[Any] = ()
    ) -> None:  # fmt: skip
        self.driver, self.function, self.layout, self.early = one.driver, one.function, one.layout, one.early
        self.block, self.shared, self.base = one.how.block, one.how.shared, one.parameters[0] - one.layout[0][0]
        self.memory, self.attribute = one.memory, one.attribute
        self.size, self.starts = sum(self.layout[-1]), [start for start, _ in self.layout]
        self.pointers_type = ctypes.c_void_p * len(self.starts)
        self.pointers = []  # (start, index in `values`, index of the caller's tensor)
        self.numbers = []  # (start, bytes, index in `values`)
        self.described = []  # (index in `values`, descriptor), of those whose maps stay as they were recorded
        self.mapped = []  # (index in `values`, start, index of the caller's tensor, map's facts, parameters of its sizes)
        self.boxes = []  # (start, index of the caller's tensor)
        spans, facts = iter(self.layout), iter(maps)
        for k, x in enumerate(values):
            start, size = next(spans, (0, 0))
            if isinstance(x, torch.Tensor):
                where, number, _ = source(x)
                self.check(size == 8 and not where & 15 and self.read(start, 8) == where)
                self.pointers.append((start, k, number))
            elif hasattr(x, "base"):
                number, tile = source(x.base)[1], next(facts, None)
                sizes = [next(spans, (0, 0)) for _ in (*x.shape, *x.strides)]
                self.check(size == 128 and (tile is not None or number < 0))
                if tile is None:
                    self.described.append((k, self.facts(x)))
                    continue
                self.mapped.append((k, start, number, tile, sizes))
                self.check([self.read(*where) for where in sizes] == [*x.shape, *x.strides])
            else:
                self.check(type(x) is int and size in (4, 8) and self.read(start, size) == x)
                self.numbers.append((start, size, k))
        for tensor, *_ in boxes:
            start, size = next(spans, (0, 0))
            self.check(size == 128)
            self.boxes.append((start, source(tensor)[1]))
        self.check(not any(self.read(start, size) for start, size in spans))  # scratch memory, which is not used
        self.once()
        recorded = self.own.raw
        self.describe(self.parameters[0] - self.starts[0], values)
        self.check(self.own.raw == recorded)  # tensor maps are made like those of the kernel's own interface

    def once(self) -> None:
        """Allocate the template's own memory for parameters, which each launch from the template overwrites."""
        self.own = ctypes.create_string_buffer(self.size + 64)
        start = -ctypes.addressof(self.own) % 64  # tensor maps need this alignment
        base = ctypes.addressof(self.own) + start
        ctypes.memmove(base, self.base, self.size)
        self.parameters = self.pointers_type(*[base + offset for offset in self.starts])
        self.config = DriverConfig((ctypes.c_uint * 3)(), self.block, self.shared, None,
                                   ctypes.addressof(self.attribute), int(self.early))  # fmt: skip
        self.arguments = (ctypes.byref(self.config), self.function, self.parameters, None)
        self.call, self.maps = self.driver.library.cuLaunchKernelEx, [base + offset for offset, _ in self.boxes]
        self.packs = []  # (function that writes neighbouring parameters, offset in the memory, their indices in `values`)
        self.narrow = [k for _, size, k in self.numbers if size == 4]
        fields = sorted([(a, 8, k) for a, k, _ in self.pointers] + self.numbers)
        kinds = {k: "Q" for _, k, _ in self.pointers} | {k: "i" if size == 4 else "q" for _, size, k in self.numbers}
        while fields:
            count = 1
            while count < len(fields) and fields[count][0] == sum(fields[count - 1][:2]):
                count += 1
            indices = [k for _, _, k in fields[:count]]
            pack = Struct("=" + "".join(kinds[k] for k in indices)).pack_into
            self.packs.append((pack, start + fields[0][0], indices))
            fields = fields[count:]

    def launch(self, grid: Any, values: Sequence[Any], maps: Sequence[Any], stream: int) -> None:
        """Launch once on the tensors, integers, tensor maps and grid of a call.

        Raises LookupError as `SizedLaunch` does.
        """
        given = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in values]
        for _, k, _ in self.pointers:
            self.check(not given[k] & 15)
        self.check_numbers(values)
        for k, facts in self.described:
            self.check(self.facts(values[k]) == facts)
        for pack, start, indices in self.packs:
            pack(self.own, start, *[given[k] for k in indices])
        for where, found in zip(self.maps, maps):
            ctypes.memmove(where, found.getPtr(), 128)
        self.describe(self.parameters[0] - self.starts[0], values)
        self.config.grid[:] = self.blocks(grid)
        self.config.stream = stream
        if code := self.call(*self.arguments):
            self.driver.checked(self.call, self.arguments, code)

    def describe(self, base: int, values: Sequence[Any]) -> None:
        """Write tensor maps, shapes and strides of a call's descriptors into parameters at the address `base`. Raises
        LookupError if the driver refuses a tensor map."""
        for k, start, _, tile, sizes in self.mapped:
            x = values[k]
            try:
                write_tensor_map(self.driver, base + start, x, tile)
            except RuntimeError as error:
                raise LookupError(str(error)) from None
            for (where, size), n in zip(sizes, (*x.shape, *x.strides)):
                ctypes.memmove(base + where, n.to_bytes(size, "little", signed=True), size)

    def check_numbers(self, values: Sequence[Any]) -> None:
        """Raise LookupError unless all integers fit into their parameters; the kernel has another variant for larger
        integers."""
        for k in self.narrow:
            self.check(-(1 << 31) <= values[k] < 1 << 31)

    @staticmethod
    def check(holds: bool) -> None:
        """Raise LookupError unless `holds`."""
        if not holds:
            raise LookupError("a launch's parameters are not those of its call")

    @staticmethod
    def blocks(grid: Any) -> tuple[int, ...]:
        """The numbers of blocks along three axes, from a grid of fewer axes or a single number."""
        return (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)

    @staticmethod
    def facts(x: Any) -> tuple[Any, ...]:
        """(address, shape, strides) of a tensor descriptor."""
        return x.base.data_ptr(), tuple(x.shape), tuple(x.strides)

    def read(self, start: int, size: int) -> int:
        """The value of the parameter of `size` bytes at offset `start`, as an integer."""
        return int.from_bytes(ctypes.string_at(self.base + start, size), "little")


class SizedLaunch(DirectLaunch):
    """A launch made from a template, on the tensors, integers, tensor maps and grid of a call at another size.

    `spans`: (address, bytes) of the caller's tensors of that call. Raises LookupError if the call needs another
    variant of the kernel, or if an address is not in the caller's tensor in which the recorded call had it.
    """

    def __init__(
        self, like: LaunchTemplate, grid: Any, values: Sequence[Any], boxes: Sequence[Any], maps: Sequence[Any],
        spans: Sequence[tuple[int, int]], stream: int,
    ) -> None:  # fmt: skip
        self.driver, self.function, self.early, self.layout = like.driver, like.function, like.early, like.layout
        self.memory = ctypes.create_string_buffer(like.size + 64)
        base = -(-ctypes.addressof(self.memory) // 64) * 64  # tensor maps need this alignment
        self.parameters = like.pointers_type(*[base + start for start in like.starts])
        ctypes.memmove(base, like.base, like.size)
        self.slots, self.boxes, self.given, self.boxed = [], [], [], []
        for start, k, number in like.pointers:
            slot, where = ctypes.c_uint64.from_address(base + start), values[k].data_ptr()
            like.check(not where & 15)
            slot.value = where
            self.given.append((slot, k))
            if number >= 0:
                self.slots.append((slot, number, self.offset(where, *spans[number])))
        like.check_numbers(values)
        for start, size, k in like.numbers:
            (ctypes.c_int32 if size == 4 else ctypes.c_int64).from_address(base + start).value = values[k]
        for k, facts in like.described:
            like.check(like.facts(values[k]) == facts)
        like.describe(base, values)
        for position, (k, start, number, *_) in enumerate(like.mapped):
            box = ctypes.c_void_p(base + start)
            self.boxed.append((box, position))
            if number >= 0:
                self.boxes.append((box, number, self.offset(values[k].base.data_ptr(), *spans[number])))
        for k, ((start, number), found, (tensor, *_)) in enumerate(zip(like.boxes, maps, boxes)):
            ctypes.memmove(base + start, found.getPtr(), 128)
            box = ctypes.c_void_p(base + start)
            self.boxed.append((box, k))
            if number >= 0:
                self.boxes.append((box, number, self.offset(tensor.data_ptr(), *spans[number])))
        self.attribute = like.attribute
        self.config = DriverConfig((ctypes.c_uint * 3)(*like.blocks(grid)), like.block, like.shared, stream,
                                   ctypes.addressof(self.attribute), int(like.early))  # fmt: skip
        self.arguments = (ctypes.byref(self.config), self.function, self.parameters, None)
        self.call, self.replace = self.driver.library.cuLaunchKernelEx, self.driver.library.cuTensorMapReplaceAddress

    @staticmethod
    def offset(where: int, start: int, size: int) -> int:
        """Bytes from the start of a caller's tensor to an address.

        Raises LookupError for an address outside of the tensor.
        """
        if not start <= where < start + max(size, 1):
            raise LookupError("a launch reads another tensor than the recorded one")
        return where - start


class KnownLaunches:
    """Templates of a program's launches: (position in a call, kernel, options) -> template, for each form that was
    recorded.

    `complete`: whether calls consist of these launches only, without kernels of libraries.
    """

    def __init__(self) -> None:
        self.templates: dict[Any, LaunchTemplate] = {}
        self.complete = True
        self.made: list[Any] = []  # launches of the call that is being made; None for one of another kind
        self.spans: list[tuple[int, int]] = []  # addresses and bytes of its tensors
        self.stream, self.keep = 0, False

    def learn(self, kernels: Any, complete: bool) -> None:
        """Add the launches that `kernels` (a `Launches`) recorded last; `complete`: whether they are all of the
        call."""
        self.complete &= complete
        for i, (one, (kernel, given, options)) in enumerate(zip(kernels.table, kernels.sites)):
            key = self.key(i, kernel, options)
            if key not in self.templates:
                values, boxes = [*given, *options.get("sizes", ())], options.get("boxes", ())
                try:
                    maps = kernels.variants.maps(kernel, given) if kernels.variants is not None else ()
                    self.templates[key] = LaunchTemplate(one, values, boxes, kernels.source, maps)
                except LookupError:  # launched through its own interface
                    continue
        kernels.sites = None

    @staticmethod
    def key(position: int, kernel: Any, options: Any) -> Any:
        """Key of a launch's template: its position in the call, its kernel, and its options without sizes."""
        return position, id(kernel), *[(k, v) for k, v in options.items() if k not in ("boxes", "sizes", "grid")]

    def call(
        self, kernels: Any, tensors: Sequence[Any], stream: int, run: Callable[..., Any], keep: bool
    ) -> tuple[Any, bool]:
        """(results of `run` on the caller's tensors, whether all launches could be made from templates).

        With `keep`, `kernels` repeats these launches in later calls.
        """
        self.made, self.spans, self.stream, self.keep = [], [(x.data_ptr(), x.nbytes) for x in tensors], stream, keep
        kernels.known = self
        try:
            results = run(tensors)
        finally:
            kernels.known, made, self.made = None, self.made, []
        if None in made:
            return results, False
        if keep:
            kernels.have(made, stream)
        return results, True

    def launch(self, kernel: Any, grid: Any, given: Sequence[Any], options: Any) -> bool:
        """Make the next launch from its template; returns False, without launching, if none fits."""
        like, boxes = self.templates.get(self.key(len(self.made), kernel, options)), options.get("boxes", ())
        self.made.append(None)
        if like is None:
            return False
        try:
            maps = [kernel.described(*b) for b in boxes]
            values = [*given, *options.get("sizes", ())]
            if not self.keep:
                like.launch(grid, values, maps, self.stream)
                self.made[-1] = like
                return True
            one = SizedLaunch(like, grid, values, boxes, maps, self.spans, self.stream)
        except LookupError:
            return False
        one.launch()
        self.made[-1] = one
        return True


#: helper name -> source
HELPERS: dict[str, str] = dict(sources_of(__name__))

__all__ = ["HELPERS", "KnownLaunches", "LaunchTemplate", "SizedLaunch"]
