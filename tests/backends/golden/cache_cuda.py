"""cache: 2 kernels."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from threading import Lock
from time import perf_counter
from typing import Any
from weakref import finalize

import numpy as np
import torch


class Calls:
    """Calls of a program on the caller's current stream: kernels read the caller's tensors and write fresh results.

    `launch` runs the kernels, given the inputs and the memory of results. Kernels assume dense row-major tensors on
    this device that begin at multiples of 16 bytes: other inputs are copied first. `inputs` are (shape, dtype),
    `results` are (shape, dtype, strides). `library`: indices of the tensors (inputs, then results) that library kernels
    read or write. With `reuse`, results are in the program's own memory and the next call overwrites them. `strict`:
    library kernels multiply float32, and must not round operands even if the process allows it. `memory`: the
    workspace.

    The first call launches kernel by kernel. Then, with `graph`, the launches are recorded, whole calls are timed in
    each `launch_mode`, and the fastest one is kept, unless one is given:
      flat: each kernel is launched by itself;
      graph: a CUDA graph, in which the parameters of kernels are set to the caller's addresses; tensors that library
        kernels read or write are copied where their addresses are not found among the parameters, except `steady`
        inputs;
      copying: a CUDA graph on fixed memory; all inputs and results are copied.
    `steady` are the indices of inputs that the caller says stay at their addresses, such as parameters of a model that
    is trained: the graph's library kernels read them there. A call with one of them elsewhere launches kernel by
    kernel, and the launches are recorded anew, with a copy of that input.
    While the caller captures a CUDA graph, kernels are launched one by one and become part of the caller's graph.
    """

    TOGETHER = 4  # results of a dtype from which they are copied in one launch
    WIDE = 256  # libraries choose kernels by the alignment of addresses, up to so many bytes
    TURNS, TIMING_S = 24, 0.1  # of timing launch modes: most turns, and seconds after which none begins but the first

    def __init__(
        self, launch: Callable[..., Any], kernels: Any, inputs: Sequence[Any], results: Sequence[Any], device: Any, graph: bool,
        *, reuse: bool = False, library: Sequence[int] = (), strict: bool = True, states: Mapping[str, Any] | None = None,
        launch_mode: str = "", memory: Any = None,
    ) -> None:  # fmt: skip
        self.launch, self.kernels, self.device, self.reuse = launch, kernels, torch.device(device), reuse
        self.memory = memory
        self.gpu, self.index = self.device.type == "cuda", self.device.index
        if self.gpu and self.index is None:
            self.index = torch.cuda.current_device()
            self.device = torch.device("cuda", self.index)
        elif not self.gpu:
            self.index = -1  # as `Tensor.get_device` of the CPU
        self.types = [*((s, t, None) for s, t in inputs), *results]
        self.count, self.library, self.strict, self.states = len(inputs), frozenset(library), strict, states or {}
        self.wanted, self.launch_mode, self.ready, self.flat_ready = graph and self.gpu, launch_mode, False, False
        self.places: dict[int, Any] = {}  # number of an input or result -> its fixed memory
        self.steady: frozenset[int] = frozenset()
        self.pinned: dict[int, int] = {}  # index of an input that the graph reads in place -> its address
        self.copied = self.library  # indices of the inputs and results that graphs copy
        self.found: list[Any] = []  # launches of library kernels whose parameters are set to the caller's addresses
        self.why_copied = ""  # why graphs copy tensors that library kernels use
        self.wide: set[int] = set()  # indices of the inputs that they read: at multiples of WIDE bytes, as recorded
        self.moved = False  # whether such an input was elsewhere in a call
        self.recorded: Any = None
        self.executable: Any = None
        self.handed: list[Any] = []  # recorded results: (number, view of it or None) or (-1, tensor)
        self.whole: list[int] = []  # their numbers, if all are the memory of results as it is
        self.private: set[int] = {x.untyped_storage()._cdata for x in self.states.values()}
        self.complete = False  # whether all nodes of the graph are launches of generated kernels
        self.fresh = [self.maker(i) for i in range(self.count, len(self.types))]  # functions that allocate results
        self.last: list[int] = []  # addresses in the executable graph
        self.known: Any = None  # `KnownLaunches` of a program of every size
        self.alike = False  # whether the launches of the last call were like those that it knows
        self.seen, self.settled = 0, False  # calls so far; whether the launch mode is final
        self.times: dict[str, float] = {}  # seconds of a call in each launch mode, if they were compared
        self.recording_s = 0.0
        self.stream = -1
        self.followed: set[int] = set()  # streams whose calls use the memory of this object
        #: Stream of the last call; at first the one on which the program's weights were made.
        self.stream_object: Any = torch.cuda.current_stream(self.index) if self.gpu else None
        self.lock = Lock()

    def __call__(self, *given: Any) -> Any:
        if not self.gpu:
            return self.plain([self.dense(x) for x in given])
        if torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.device):
                return self(*given)
        with self.lock:
            fits = self.fits
            read = [x if fits(x) else self.dense(x) for x in given]
            stream = torch._C._cuda_getCurrentRawStream(self.index)
            if self.flat_ready and stream == self.stream:  # what the caller records, too
                return self.flat(read, stream)
            if torch.cuda.is_current_stream_capturing():
                return self.plain(read)
            if stream != self.stream:
                self.follow(stream)
            if self.ready:
                return getattr(self, self.launch_mode)(read, stream)
            if not self.wanted:
                return self.first(read, stream)
            found = self.plain(read)
            self.record_with_room(read, stream)
            return found

    # ------------------------------------------------------------ arguments
    def fits(self, x: Any) -> bool:
        """Whether kernels can read a tensor in place: dense row-major memory on this device, 16-byte aligned, without
        gradient, and not memory of the program itself. A direct call in C checks this of a call's tensors once, and of
        later ones their type, shape, strides and device (a guard of Dynamo), alignment and memory."""
        return (
            x.is_contiguous() and not x.data_ptr() & 15 and x.get_device() == self.index and not x.requires_grad
            and not x.is_neg() and not (self.private and x.untyped_storage()._cdata in self.private)
        )  # fmt: skip

    def dense(self, x: Any) -> Any:
        """The tensor itself if it has the form that kernels require (`Calls.fits`), else a copy that has."""
        x = x.detach().to(self.device).resolve_neg().contiguous()
        return x if self.fits(x) else x.clone()

    def maker(self, number: int) -> Any:
        """A function without arguments that allocates memory for input or result `number`."""
        shape, dtype, strides = self.types[number]
        if strides is None:
            strides, step = [], 1
            for n in reversed(shape):
                strides, step = [step, *strides], step * max(n, 1)
        # what torch.compile's code calls: on the current device, which calls make this one
        if self.device.type == "cuda":
            known = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
            if (quick := getattr(known, "_empty_strided_cuda", None)) is not None:
                return partial(quick, tuple(shape), tuple(strides), dtype)
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=self.device)

    def follow(self, stream: int) -> None:
        """Make a stream wait for the last call if that ran on another stream, because calls share memory."""
        current = torch.cuda.current_stream()
        if self.stream_object is not None:
            current.wait_stream(self.stream_object)
        self.stream, self.stream_object = stream, current
        self.used_on(stream, current)

    def used_on(self, stream: int, stream_object: Any) -> None:
        """Note that calls on a stream use the program's memory: it is not used anew before they end, even if the
        program is released before."""
        if stream in self.followed:
            return
        self.followed.add(stream)
        for x in (*([] if self.memory is None else [self.memory]), *self.states.values(), *self.places.values()):
            x.record_stream(stream_object)

    # ------------------------------------------------------------ launch modes
    def plain(self, given: Sequence[Any]) -> Any:
        """The results of running `launch` on the inputs and newly allocated memory for results."""
        results = self.launched([*given, *[make() for make in self.fresh]])
        if self.reuse:  # the next call writes over them
            self.private |= {x.untyped_storage()._cdata for x in results}
        return results

    def first(self, given: Sequence[Any], stream: int) -> Any:
        """The results of an early call at some sizes: as `plain`, but launches are made from those recorded at other
        sizes, where there are any. If that worked for all kernels in two calls, later calls repeat the second one.
        """
        if self.known is None or not self.known.templates:
            return self.plain(given)
        tensors = [*given, *[make() for make in self.fresh]]
        keep = self.alike
        results, self.alike = self.known.call(self.kernels, tensors, stream, self.launched, keep)
        if self.reuse:
            self.private |= {x.untyped_storage()._cdata for x in results}
        if keep and self.alike:
            self.complete = self.known.complete
            self.hand(results, tensors)
            self.launch_mode, self.ready, self.flat_ready = "flat", True, True
        return results

    def launched(self, tensors: Sequence[Any]) -> Any:
        """The results of running `launch` on inputs and memory for results (`tensors`), with exact float32 products in
        libraries, except in kernels that ask for TF32.

        The setting belongs to the process: a lock lets one program at a time launch library kernels with it changed.
        """
        if self.kernels is not None:
            self.kernels.next = 0
        if not self.strict:
            with torch.no_grad():
                return self.launch(*tensors)
        settings = torch.backends.cuda.matmul
        name, strict = ("fp32_precision", "ieee") if hasattr(settings, "fp32_precision") else ("allow_tf32", False)
        with torch.no_grad(), vars(torch.cuda).setdefault("_programs_launching", Lock()):
            before = getattr(settings, name)
            setattr(settings, name, strict)
            try:
                return self.launch(*tensors)
            finally:
                setattr(settings, name, before)

    def flat(self, given: Sequence[Any], stream: int) -> Any:
        """The results of launching each kernel by itself; generated kernels directly by the driver."""
        tensors = [*given, *[make() for make in self.fresh]]
        self.kernels.on(stream)
        if self.complete:
            self.kernels.run([x.data_ptr() for x in tensors])
            return self.results(tensors, ())
        self.kernels.direct = True
        try:
            return self.launched(tensors)
        finally:
            self.kernels.direct = False

    def graph(self, given: Sequence[Any], stream: int) -> Any:
        """The results of launching the CUDA graph; generated kernels use the caller's tensors."""
        return self.replay(given, stream, self.copied)

    def copying(self, given: Sequence[Any], stream: int) -> Any:
        """Copies of the results of launching the CUDA graph on copies of the inputs."""
        return self.replay(given, stream, self.places.keys())

    def replay(self, given: Sequence[Any], stream: int, fixed: Any) -> Any:
        """The results of launching the CUDA graph. `fixed`: indices of the inputs and results that are copied from and
        to memory of the program."""
        tensors = list(given)
        if moved := [i for i, where in self.pinned.items() if given[i].data_ptr() != where]:
            return self.recorded_anew(given, stream, moved)
        for i, x in enumerate(given):
            if i in fixed:
                tensors[i] = self.places[i].copy_(x)
            elif i in self.wide and x.data_ptr() % self.WIDE:
                tensors[i] = x.clone()
        tensors += [self.places[i] if i in fixed else make() for i, make in enumerate(self.fresh, self.count)]
        if self.executable is None:
            self.recorded.replay()
        else:
            addresses = [x.data_ptr() for x in tensors]
            if addresses != self.last:
                for one in (*self.kernels.table, *self.found):
                    if one.touches:
                        one.place(addresses)
                        one.update(self.executable)
                self.last = addresses
            driver = self.kernels.driver
            given = self.executable, ctypes.c_void_p(stream)
            if code := driver.library.cuGraphLaunch(*given):
                driver.checked(driver.library.cuGraphLaunch, given, code)
        return self.results(tensors, fixed)

    def recorded_anew(self, given: Sequence[Any], stream: int, moved: Sequence[int]) -> Any:
        """The results of a call in which the inputs `moved`, which the graph reads in place, are elsewhere. Later calls
        copy these inputs; if others move as well, all."""
        found = self.plain(given)
        self.steady = frozenset() if self.moved else self.steady - frozenset(moved)
        self.moved = True
        self.record_with_room(given, stream)
        return found

    def results(self, tensors: Sequence[Any], fixed: Any) -> Any:
        """The results of a recorded call, given the tensors that its kernels used (inputs, then memory of results).
        Results in the program's own memory (`fixed`: indices of the tensors there) are copied, because the next call
        overwrites them."""
        if self.whole and not fixed:
            return tuple([tensors[number] for number in self.whole])
        found: list[Any] = []
        copied = []
        for number, view in self.handed:
            if number < 0:
                x, again = view, not self.reuse
            else:
                x, again = tensors[number] if view is None else tensors[number].as_strided(*view), number in fixed
            if again:
                copied.append(len(found))
            found.append(x)
        return self.copies(found, copied)

    def copies(self, found: Any, numbers: Sequence[int]) -> Any:
        """Tuple of the tensors `found`, those at the indices `numbers` copied: several of a dtype in one launch."""
        groups: dict[Any, list[int]] = {}
        for n in numbers:
            groups.setdefault(found[n].dtype, []).append(n)
        found = [*found]
        for group in groups.values():
            if len(group) < self.TOGETHER:
                for n in group:
                    found[n] = found[n].clone()
                continue
            made = [torch.empty_like(found[n]) for n in group]
            torch._foreach_copy_(made, [found[n] for n in group])
            for n, x in zip(group, made):
                found[n] = x
        return tuple(found)

    # ------------------------------------------------------------ recording
    def record_with_room(self, given: Sequence[Any], stream: int) -> None:
        """Record the launches (`record`), for which inputs and results need memory once more. If memory runs out, later
        calls launch kernel by kernel."""
        try:
            self.record(given, stream)
        except torch.cuda.OutOfMemoryError as error:
            self.wanted, self.ready, self.flat_ready, self.settled = False, False, False, True
            self.places, self.pinned, self.recorded, self.executable = {}, {}, None, None
            warnings.warn(f"calls of this program launch kernel by kernel: {error}", RuntimeWarning, stacklevel=4)

    def record(self, given: Sequence[Any], stream: int) -> None:
        """Record the launches as a CUDA graph, without running them, and choose the launch mode of later calls."""
        pinned = self.steady & self.library
        with torch.inference_mode(False), torch.no_grad():
            places = {i: self.maker(i)() for i in range(len(self.types)) if i not in pinned}
        begun, used = perf_counter(), [given[i] if i in pinned else places[i] for i in range(len(self.types))]
        try:
            direct, why = self.captured(used, places, True), ""
        except (LookupError, TypeError, OSError) as error:  # an old driver, an old PyTorch
            places |= {i: self.maker(i)() for i in pinned}
            pinned = frozenset()
            direct, why = self.captured([places[i] for i in range(len(self.types))], places, False), str(error)
        self.recording_s = perf_counter() - begun
        if not direct:
            warnings.warn(f"calls of this program copy inputs and results: {why}", RuntimeWarning, stacklevel=4)
        self.places, self.pinned = places, {i: given[i].data_ptr() for i in pinned}
        self.followed = {stream}
        self.copied, self.complete = self.library - pinned, self.complete and not pinned
        self.found, self.wide, self.why_copied = [], set(), ""
        if direct and self.copied and self.known is None:
            self.keep_states(LibraryAddresses(self).find, given, stream)
        modes = ["flat", "graph", "copying"] if direct else ["copying"]
        if self.reuse:
            self.private |= {x.untyped_storage()._cdata for _, x in self.handed}
        if self.launch_mode not in modes:
            self.launch_mode = self.fastest(modes, given, stream) if len(modes) > 1 else modes[0]
        if self.launch_mode == "flat":
            self.recorded = self.executable = None
            self.handed = self.handed if self.complete else []
        if self.launch_mode != "copying":
            self.places = {i: x for i, x in self.places.items() if i in self.copied and self.launch_mode == "graph"}
        self.ready, self.flat_ready, self.settled = True, self.launch_mode == "flat", True

    def captured(self, tensors: Sequence[Any], places: Mapping[int, Any], direct: bool) -> bool:
        """Record the launches on `tensors` (inputs, then memory of results). `places`: those of them, by number, in
        whose place later calls have other memory. `direct`: also read the launches from the graph; returns `direct`.

        Torch records one graph at a time: recording in two threads would end the process.
        """
        alone = vars(torch.cuda).setdefault("_programs_recording", Lock())  # the same for all programs in a process
        kernels = self.kernels
        for quick in (True, False) if direct and self.known is not None else (False,):
            recorded = torch.cuda.CUDAGraph(keep_graph=True) if direct else torch.cuda.CUDAGraph()
            kernels.sites = None if self.known is None else []
            if direct:
                kernels.begin(places, self.index)
            try:
                with alone:
                    results = self.captured_results(recorded, tensors, quick)
                break
            except torch.cuda.OutOfMemoryError:
                if not quick:
                    raise
            finally:
                kernels.recording = False
        self.hand(results, tensors)
        self.recorded = recorded
        if direct:
            kernels.read()
            self.instantiate(ctypes.c_void_p(recorded.raw_cuda_graph()), kernels.driver)
            if self.known is not None:
                self.known.learn(kernels, self.complete)
        return direct

    def captured_results(self, recorded: Any, places: Sequence[Any], quick: bool) -> Any:
        """The results of `launch`, run while a CUDA graph is captured.

        `torch.cuda.graph` waits for the device and empties the allocator's cache, so that later calls allocate anew;
        not so with `quick`. Its own stream would be on the device that it captured on first in this process.
        """
        streams = vars(torch.cuda).setdefault("_programs_streams", {})
        stream = streams.setdefault(self.index, None) or torch.cuda.Stream(self.index)
        streams[self.index] = stream
        if not quick:
            with torch.cuda.graph(recorded, stream=stream, capture_error_mode="thread_local"):
                return self.launched(places)
        with torch.cuda.stream(stream):
            recorded.capture_begin(capture_error_mode="thread_local")
            try:
                return self.launched(places)
            finally:
                recorded.capture_end()

    def hand(self, results: Sequence[Any], tensors: Sequence[Any]) -> None:
        """Record where the results of a recorded call are: for each, the index of the tensor in `tensors` (inputs, then
        memory of results) that holds it, and the view of that tensor."""
        owners = {x.untyped_storage()._cdata: i for i, x in enumerate(tensors) if i >= self.count}
        self.handed = [self.origin(r, owners, tensors) for r in results]
        self.whole = [n for n, view in self.handed if n >= 0 and view is None]
        self.whole = self.whole if len(self.whole) == len(self.handed) else []

    @staticmethod
    def origin(result: Any, owners: Mapping[int, int], places: Sequence[Any]) -> tuple[int, Any]:
        """Location of a result of a recorded call: (index of the tensor, None) if it is that whole tensor; (index,
        (shape, strides, offset)) for a view of it; (-1, the result) if it is in the program's own memory."""
        number = owners.get(result.untyped_storage()._cdata, -1)
        if number < 0:
            return number, result
        whole = result.shape == places[number].shape and result.stride() == places[number].stride()
        return number, None if whole else (result.shape, result.stride(), result.storage_offset())

    def instantiate(self, graph: Any, driver: Driver) -> None:
        """Make the recorded CUDA graph executable."""
        count, executable = ctypes.c_size_t(), ctypes.c_void_p()
        driver("cuGraphGetNodes", graph, None, ctypes.byref(count))
        self.complete = count.value == len(self.kernels.table)
        driver("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        finalize(executable, driver.library.cuGraphExecDestroy, ctypes.c_void_p(executable.value)).atexit = False
        self.executable, self.last = executable, []

    def fastest(self, modes: Sequence[str], given: Sequence[Any], stream: int) -> str:
        """The launch mode with the shortest time of a whole call; among modes within 3 % and 30 µs of it the first of
        `modes`. States are restored afterwards."""
        times = dict.fromkeys(modes, float("inf"))
        self.keep_states(self.time_modes, times, given, stream)
        best = min(times.values())
        self.times = times
        return next(mode for mode in modes if times[mode] <= best + min(0.03 * best, 3e-5))

    def keep_states(self, run: Any, *given: Any) -> None:
        """Run a function that makes calls, and restore the states, which calls change."""
        saved = {name: x.clone() for name, x in self.states.items()}
        try:
            run(*given)
        finally:
            for name, x in self.states.items():
                x.copy_(saved[name])

    def time_modes(self, times: dict[str, float], given: Sequence[Any], stream: int) -> None:
        """Time whole calls in each launch mode that `times` names, and set its seconds there: those of the fastest
        turn. There are more turns while they are short, since other processes may use the device or the host in some.
        The calls change the states."""
        count, until = 1, perf_counter() + self.TIMING_S
        for turn in range(self.TURNS):
            if turn > 3 and perf_counter() > until:
                break
            for mode in times:
                if mode != "flat":  # which has written addresses of what libraries returned in its calls
                    self.kernels.restore()
                    self.last = []
                getattr(self, mode)(given, stream)  # untimed: updates the graph's nodes
                self.stream_object.synchronize()
                start = perf_counter()
                for _ in range(count):
                    getattr(self, mode)(given, stream)
                self.stream_object.synchronize()
                took = (perf_counter() - start) / count
                times[mode] = min(times[mode], took) if turn else float("inf")
            if not turn:
                count = max(1, min(20, int(1e-3 / took)))


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


class DriverAttribute(ctypes.Structure):
    """Structure CUlaunchAttribute of the driver, with an integer value."""

    _fields_ = (("key", ctypes.c_uint), ("gap", ctypes.c_uint), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class DriverConfig(ctypes.Structure):
    """Structure CUlaunchConfig of the driver."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class KernelNode(ctypes.Structure):
    """Structure CUDA_KERNEL_NODE_PARAMS of the driver."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


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


class LibraryAddresses:
    """Finds the inputs and results of a recorded program that its library kernels may have elsewhere in later calls,
    by their addresses among the kernels' parameters and by the results of calls.

    `calls`: the program's `Calls`, whose fields `found`, `copied`, `wide` and `why_copied` are set. Inputs and results
    have the indices that they have there.
    """

    PROVING_S = 1.0  # seconds in which the tensors are found that library kernels may have elsewhere
    ROUNDING = 1e-3  # distance of results (`distance`) that sums in another order explain
    NOISE, MOST_NOISE = 4.0, 0.2  # such a distance relative to that of two equal calls, and the largest one allowed

    def __init__(self, calls: Any) -> None:
        self.calls = calls

    def find(self, given: Sequence[Any], stream: int) -> None:
        """Find the addresses of copied tensors among the parameters of library kernels, by recording the launches once
        more on other memory (library_launches.py): graphs then set them instead of copying. All are copied as before if
        the recordings differ; those tensors are with which the results are not those of a call that copies. Where equal
        calls differ, because kernels add in any order (gradients of weights), so may the results."""
        calls, copied = self.calls, self.calls.copied
        try:
            calls.found, numbers = self.addresses(given)
            proven = self.proven_among(given, stream, sorted(numbers))
            why = "addresses are not among the parameters" if proven == numbers else "results differ"
            calls.why_copied = why if calls.copied else ""
            if proven or not numbers:
                return
        except (LookupError, torch.cuda.OutOfMemoryError) as error:
            calls.why_copied = str(error)
        except RuntimeError as error:
            calls.why_copied = str(error)
            warnings.warn(f"calls of this program copy what library kernels use: {error}", RuntimeWarning, stacklevel=6)
        calls.copied, calls.wide, calls.found = copied, set(), []
        calls.instantiate(ctypes.c_void_p(calls.recorded.raw_cuda_graph()), calls.kernels.driver)

    def addresses(self, given: Sequence[Any]) -> tuple[list[Any], set[int]]:
        """Record the launches on other memory; returns `library_launches` of both recordings."""
        calls, alone = self.calls, vars(torch.cuda).setdefault("_programs_recording", Lock())
        graphs = calls.recorded, torch.cuda.CUDAGraph(keep_graph=True)
        with torch.inference_mode(False), torch.no_grad():
            moved = {i: calls.maker(i)() for i in sorted(calls.copied, reverse=True) if calls.places[i].nbytes}
        tensors = [
            given[i] if i in calls.pinned else moved.get(i, calls.places.get(i)) for i in range(len(calls.types))
        ]
        with alone:
            calls.captured_results(graphs[1], tensors, True)
        spans = [{i: (x[i].data_ptr(), x[i].nbytes) for i in moved} for x in (calls.places, moved)]
        raw = [ctypes.c_void_p(graph.raw_cuda_graph()) for graph in graphs]
        return library_launches(calls.kernels.driver, raw, {one.node.value for one in calls.kernels.table}, *spans)

    def proven_among(self, given: Sequence[Any], stream: int, numbers: list[int]) -> set[int]:
        """Set `copied` and `wide` for the tensors among `numbers` that calls may have elsewhere (`proven`), and return
        these: all of them, or what halving the rest again and again finds within `PROVING_S` seconds."""
        calls = self.calls
        every, copied = calls.places.keys(), calls.copied
        wanted = calls.replay(given, stream, every)
        limits = []
        for x, y in zip(calls.replay(given, stream, every), wanted):
            least = self.ROUNDING if y.is_floating_point() else 0.0
            limits.append(min(max(least, self.NOISE * self.distance(x, y)), self.MOST_NOISE))
        found, groups, until = set[int](), [numbers], perf_counter() + self.PROVING_S
        while groups and groups[-1] and perf_counter() < until:
            group = groups.pop()
            more = found | {*group}
            calls.copied, calls.wide = copied - more, {i for i in more if i < calls.count}
            if self.proven(given, stream, more, wanted, limits):
                found = more
            elif len(group) > 1:
                groups += [group[len(group) // 2 :], group[: len(group) // 2]]
        calls.copied, calls.wide = copied - found, {i for i in found if i < calls.count}
        return found

    def proven(self, given: Sequence[Any], stream: int, numbers: Any, wanted: Sequence[Any], limits: Any) -> bool:
        """Whether a call gives the results `wanted` (those on recorded memory) within `limits` (distance of each) with
        the tensors `numbers` elsewhere, and leaves their recorded memory as it is: all NaN, or zeros of other dtypes
        than floats. So is the memory of results before."""

        def blank(x: Any) -> Any:
            return x.fill_(torch.nan if x.is_floating_point() else 0)

        calls = self.calls
        used = [blank(calls.places[i]) for i in numbers]
        fresh, calls.fresh = calls.fresh, [lambda make=make: blank(make()) for make in calls.fresh]
        try:
            found = calls.replay(given, stream, calls.copied)
        finally:
            calls.fresh = fresh
        left = all(bool((x.isnan() if x.is_floating_point() else x == 0).all()) for x in used)
        return left and all(self.distance(x, y) <= limit for x, y, limit in zip(found, wanted, limits))

    @staticmethod
    def distance(x: Any, y: Any) -> float:
        """Distance of a result from another: relative to the other's norm, infinite if other elements are NaN or
        infinite; of integers the share of unequal elements."""
        if not y.is_floating_point():
            return float((x != y).double().mean()) if y.numel() else 0.0
        same = (x == y) | (x.isnan() & y.isnan()) | (x.isfinite() & y.isfinite())
        if not bool(same.all()):
            return float("inf")
        x, y = (v.double().nan_to_num(0.0, 0.0, 0.0) for v in (x, y))
        return float((x - y).norm() / y.norm().clamp_min(1e-300))


class LibraryLaunch(DirectLaunch):
    """One launch of a library kernel in a recorded CUDA graph. `slots`: the words of its parameters that are addresses
    in tensors of a call, as those of a `DirectLaunch`. `unknown`: indices of tensors near which there are other
    addresses."""

    def __init__(self, driver: Any, node: int) -> None:
        self.unknown = set[int]()
        try:
            self.start = self.read(driver, node)
            self.how.parameters, self.how.extra = ctypes.addressof(self.parameters), None
        except LookupError:
            self.start = self.read_buffer()
        self.slots, self.boxes, self.config, self.touches = [], [], DriverConfig(), True

    def read_buffer(self) -> int:
        """Copy the parameters of a launch that has them as one buffer (cuBLAS's kernels for Hopper GPUs); returns the
        copy's address. If there is no buffer, nothing of the launch is set: results tell whether it uses a tensor that
        moves."""
        found: dict[int, int] = {}
        self.layout, at = [], 0
        options = ctypes.cast(self.how.extra or 0, ctypes.POINTER(ctypes.c_void_p))
        while self.how.extra and options[at]:  # pairs of a key and a value: 1 a buffer, 2 the address of its size
            found[options[at]], at = options[at + 1], at + 2
        if not found.get(1) or not found.get(2):
            return 0
        self.size = ctypes.c_size_t(ctypes.c_size_t.from_address(found[2]).value)
        self.layout = [(0, self.size.value)]
        self.memory, base, self.parameters = parameter_memory(self.layout)
        ctypes.memmove(base, found[1], self.size.value)
        self.options = (ctypes.c_void_p * 5)(1, base, 2, ctypes.addressof(self.size), 0)
        self.how.parameters, self.how.extra = None, ctypes.addressof(self.options)
        return int(base)

    def words(self) -> Iterator[Any]:
        """The aligned words of 8 bytes within the parameters."""
        for start, size in self.layout:
            for at in range(-(-start // 8) * 8, start + size - 7, 8):
                yield ctypes.c_uint64.from_address(self.start + at)

    def compare(self, other: LibraryLaunch, before: Spans, after: Mapping[int, Any]) -> None:
        """Set `slots` and `unknown`, given the same launch in a second recording. `before`, `after`: number of a tensor
        -> (address, bytes) in the first and in the second recording. Raises LookupError for another launch."""
        if self.function.value != other.function.value or self.layout != other.layout:
            raise LookupError("a library launches other kernels on other memory")
        if list(self.how.grid) != list(other.how.grid) or self.how.shared != other.how.shared:
            raise LookupError("a library launches its kernels differently on other memory")
        for word, moved in zip(self.words(), other.words()):
            near = before.at(word.value)
            held = [i for i in near if moved.value - word.value == after[i][0] - before.tensors[i][0]]
            if len(held) == 1:
                self.slots.append((word, held[0], word.value - before.tensors[held[0]][0]))
            else:  # an address that moved with no tensor or with several, or what is left of one in a gap
                self.unknown.update(near)


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


class Spans:
    """The memory of some of a call's tensors. `tensors`: index of a tensor -> (address of its first byte, bytes)."""

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self.tensors = tensors
        self.low = min((start for start, _ in tensors.values()), default=0)
        self.high = max((start + size for start, size in tensors.values()), default=-1)

    def at(self, address: int) -> list[int]:
        """Indices of the tensors in which an address is, or at whose end."""
        if not self.low <= address <= self.high:  # most words of parameters are numbers
            return []
        return [i for i, (start, size) in self.tensors.items() if start <= address <= start + size]


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


def boxed_tensors(given: Sequence[Any], options: Any) -> list[Any]:
    """The tensors of a call that kernels read through tensor maps (TMA)."""
    return [b[0] for b in options["boxes"]] if "boxes" in options else [x.base for x in given if hasattr(x, "base")]


def kept(states: Any, name: str, shape: Sequence[int], dtype: Any, device: Any) -> Any:
    """Memory of a state: the tensor in the caller's `states`, else new zeros, which are added to `states`."""
    if name not in states:
        states[name] = torch.zeros(shape, dtype=dtype, device=device)
    return states[name]


def library_launches(
    driver: Any, graphs: Sequence[Any], own: Collection[int], before: Mapping[int, Any], after: Mapping[int, Any]
) -> tuple[list[Any], set[int]]:
    """(launches of library kernels, numbers of the tensors whose addresses are among their parameters), of two
    recordings of the same launches on other memory.

    `own`: nodes of generated kernels in the first one. `before`, `after`: number of a tensor -> (address, bytes) in the
    first and in the second recording. Tensors that other nodes copy or fill, and those with unknown addresses near
    them, are left out. Raises LookupError if the recordings are not alike.
    """
    pairs = [nodes_of(driver, graph) for graph in graphs]
    if [kind for _, kind in pairs[0]] != [kind for _, kind in pairs[1]]:
        raise LookupError("a library makes other launches on other memory")
    launches: list[LibraryLaunch] = []
    spans, stay = Spans(before), set[int]()
    for (node, kind), (other, _) in zip(*pairs):
        if kind:
            stay |= numbers_copied(driver, node, kind, spans)
        elif node not in own:
            launches.append(LibraryLaunch(driver, node))
            launches[-1].compare(LibraryLaunch(driver, other), spans, after)
            stay |= launches[-1].unknown
    found = {i for one in launches for _, i, _ in one.slots} - stay
    for one in launches:
        one.slots = [slot for slot in one.slots if slot[1] in found]
    return [one for one in launches if one.slots], found


def nodes_of(driver: Any, graph: Any) -> list[tuple[int, int]]:
    """(node, its type in the driver's numbers) of a recorded CUDA graph, in the order of the driver."""
    count, found = ctypes.c_size_t(), []
    driver("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    for node in nodes:
        kind = ctypes.c_int()
        driver("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        found.append((int(node or 0), kind.value))
    return found


def numbers_copied(driver: Any, node: int, kind: int, tensors: Spans) -> set[int]:
    """Numbers of the tensors that a node copies (type 1) or fills (type 2). Raises
    LookupError for nodes of other types that may use memory."""
    names = {1: "cuGraphMemcpyNodeGetParams", 2: "cuGraphMemsetNodeGetParams"}
    if kind == 5:  # waits only
        return set()
    if kind not in names:
        raise LookupError("a library adds other nodes than kernels and copies to a graph")
    words = (ctypes.c_uint64 * 32)()  # more than either structure has
    driver(names[kind], ctypes.c_void_p(node), ctypes.byref(words))
    return {i for word in words for i in tensors.at(word)}


def parameter_memory(spans: Sequence[tuple[int, int]]) -> tuple[Any, int, Any]:
    """Memory for kernel parameters at (offset, bytes): the buffer, its start address, and the array of parameter
    addresses.
    """
    memory = ctypes.create_string_buffer(max((a + n for a, n in spans), default=0) + 64)
    base = -(-ctypes.addressof(memory) // 64) * 64  # tensor maps need this alignment
    return memory, base, (ctypes.c_void_p * max(len(spans), 1))(*(base + a for a, _ in spans))


def place(memory, offset, shape, dtype, strides=None):
    """An array at a byte offset of the workspace; row-major unless strides (in elements) are given."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def scattered(x: Any, index: Any, updates: Any, axis: int, mode: str, out: Any) -> None:
    """Write x with updates written at the index along one axis into `out`. x may be out. `mode`: "set", or how an
    update is combined with the element there: "add", "mul", "max", "min"."""
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    index, updates = index.long().remainder(x.shape[axis]), updates.to(out.dtype)
    if mode == "set":
        out.scatter_(axis, index, updates)
    else:
        reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[mode]
        out.scatter_reduce_(axis, index, updates, reduce)


def bind(weights, states=None, device="cuda", graph=True, launch_mode=""):
    """Makes the program for given weights, and states, which calls update. With `graph`, launches are recorded; see `Calls` for `launch_mode`."""
    states = {} if states is None else states
    cache = kept(states, 'cache', (6, 4), torch.float32, device)
    kernels = Launches()

    def launch(x, position, v4):
        """(x: float32[1, 4], position: int64[1, 4]) -> (output: float32[4])"""
        # scatter_elements: float32[6, 4]
        scattered(cache, position, x, 0, 'set', cache)
        # sum: float32[1, 4]
        torch.sum(cache, (0,), True, out=v4)
        v5 = v4.view((4,))
        return v5,

    inputs = [((1, 4), torch.float32), ((1, 4), torch.int64)]
    results = [((1, 4), torch.float32, None)]
    return Calls(launch, kernels, inputs, results, device, graph, reuse=False, library=[0, 1, 2], strict=False, states=states, launch_mode=launch_mode)
