"""Class that calls an emitted program on a GPU: it copies inputs that kernels cannot read, launches the kernels in the
fastest of several launch modes, and returns the results.

The source of the class is copied into emitted programs: it may use `torch` and the helpers of cuda_driver.py,
gpu_launches.py and library_addresses.py only.

Streams of a program are held in these places, each for a purpose of its own:
- `Calls.stream` (the driver's handle) and `Calls.stream_object` (Torch's object): stream of the last call. A call on
  another stream waits for it (`Calls.follow`), because calls share memory.
- `CallsBySize` (any_size_gpu_helpers.py): `bound`, the stream that made the weights, for which the first call waits;
  `streams`, all that have been used, because memory is freed only after all of them. It hands the stream of the last
  call from one choice of sizes to the next.
- `Launches.stream` (gpu_launches.py) and `KnownLaunches.stream` (any_size_launches.py): the stream in the
  configurations of recorded launches, which is the one of the call that makes them.
All of them come from Torch's current stream at the time of a call. direct_calls.c and size_call_writer.py compare it
with `Calls.stream`, and leave a call on another stream to `Calls`.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import finalize

from ...ir.definitions import source_of
from .cuda_driver import Driver
from .library_addresses import LibraryAddresses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


#: helper name -> source
HELPERS: dict[str, str] = {"Calls": source_of(Calls)}
