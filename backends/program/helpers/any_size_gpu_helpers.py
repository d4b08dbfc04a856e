"""Helper functions of emitted GPU programs with free sizes: one workspace for all sizes, calls by shape, launches with
sizes.

Their source is copied into emitted programs: each may use `torch` and the other helpers only.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from ...ir.definitions import sources_of
from .any_size_binaries import HELPERS as BINARIES
from .any_size_binaries import NotStored
from .any_size_launches import HELPERS as LAUNCHES
from .any_size_launches import KnownLaunches
from .cuda_helpers import CUDA_LIBRARY, CudaKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


class Workspace:
    """Memory on the device for the intermediate values of a call at any size: one allocation that grows on demand.

    It grows by a quarter more than asked for; `grown` counts how often, because older views are then invalid.
    """

    def __init__(self, device: Any) -> None:
        self.device, self.size, self.grown = device, -1, 0
        self.views: dict[Any, Any] = {}

    def take(self, size: int) -> dict[Any, Any]:
        """The memory as flat tensors by dtype, of at least `size` bytes."""
        if size > self.size:
            whole = (size + size // 4 + 4095) // 4096 * 4096
            memory = torch.empty(whole, dtype=torch.uint8, device=self.device)
            kinds = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                     torch.bfloat16, torch.float32, torch.float64)  # fmt: skip
            self.views, self.size, self.grown = {k: memory.view(k) for k in kinds}, whole, self.grown + 1
        return self.views

    def free(self) -> None:
        """Give up the memory."""
        self.views, self.size = {}, -1


class CallsBySize:
    """Calls of a program at every size. `at(*shapes)` prepares the `Calls` of one choice of sizes.

    Nothing is compiled for a new choice, because kernels take their sizes as arguments. `warm` lists shapes at which,
    together, all kernels run: they are compiled there at once. With `graph`, their launches are recorded there, and the
    fastest launch mode (see `Calls`) is found, unless `launch_mode` names one. The first two calls at a choice derive
    their launches from recorded ones; later calls repeat the launches of the second call. If another mode is faster,
    the launches of a choice are recorded after `break_even` calls, which have then lost as much time as recording
    takes. If a launch resembles no recorded one, the launches of a choice are recorded when it occurs for the `SEEN`th
    time. The last `KEPT` choices are kept. Calls that are part of a CUDA graph of the caller are kept for as long as
    the program exists, because that graph uses their memory.
    """

    KEPT, SEEN, BREAK_EVEN = 64, 2, 32

    def __init__(
        self, at: Callable[..., Any], workspace: Any, device: Any, graph: bool, warm: Sequence[Any] = (), *,
        states: Any = None, launch_mode: str = "", variants: Any = None,
    ) -> None:  # fmt: skip
        self.variants = variants
        self.at, self.workspace, self.graph, self.launch_mode = at, workspace, graph, launch_mode
        self.gpu, self.index = torch.device(device).type == "cuda", torch.device(device).index
        if self.gpu and self.index is None:
            self.index = torch.cuda.current_device()
        self.kept: dict[Any, Any] = {}  # shapes -> calls, the last ones used at the end
        self.held: dict[int, Any] = {}  # calls that a graph of the caller contains
        self.last: Any = None  # the calls that ran last
        self.known, self.break_even = KnownLaunches(), self.BREAK_EVEN
        self.streams: set[int] = set()
        self.bound: Any = (
            torch.cuda.current_stream(self.index) if self.gpu else None
        )  # the stream that made the weights
        self.grown = 0
        self.lock = Lock()
        if self.gpu and not torch.cuda.is_current_stream_capturing():
            self.warm(warm, states or {})

    def __call__(self, *given: Any) -> Any:
        if self.gpu and torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.index):
                return self(*given)
        with self.lock:
            shapes = tuple([x.shape for x in given])
            calls = self.kept.get(shapes)
            capturing = self.gpu and torch.cuda.is_current_stream_capturing()
            if capturing or calls is None or not calls.settled or calls is not self.last:
                calls = self.prepared(shapes, calls, capturing)
            results = calls(*given)
            if not capturing and calls.stream not in self.streams:
                self.used_on(calls.stream, calls.stream_object)
            if not self.launch_mode and calls.settled:
                self.chosen(calls)
            return results

    def used_on(self, stream: int, stream_object: Any) -> None:
        """Note that calls on a stream use the workspace: its memory is not used anew before they end, even if the
        program is released before."""
        self.streams.add(stream)
        memory = None if self.workspace is None else self.workspace.views.get(torch.uint8)
        if memory is not None and self.gpu:
            memory.record_stream(stream_object)

    def chosen(self, calls: Any) -> None:
        """Use the launch mode that recorded calls found to be the fastest."""
        self.launch_mode = calls.launch_mode
        if calls.times:
            gain = calls.times.get("flat", calls.times[self.launch_mode]) - calls.times[self.launch_mode]
            self.break_even = max(self.SEEN, int(calls.recording_s / max(gain, 1e-7)))

    def prepared(self, shapes: Any, calls: Any, capturing: bool) -> Any:
        """The `Calls` of a choice of sizes, ordered after the call that ran last: `calls`, or new ones for None.
        `capturing`: the caller captures a CUDA graph.
        """
        if calls is None:
            calls = self.made(shapes, capturing)
        if capturing:
            self.held[id(calls)] = calls
            return calls
        self.kept[shapes] = self.kept.pop(shapes)
        if not calls.settled:
            calls.seen += 1
            if (
                self.graph
                and calls.gpu
                and calls.seen >= (self.break_even if calls.ready or calls.alike else self.SEEN)
            ):
                calls.settled = calls.ready and self.launch_mode == calls.launch_mode
                calls.wanted = not calls.settled
                if calls.wanted:
                    calls.ready, calls.flat_ready, calls.launch_mode = False, False, self.launch_mode
        if self.last is not None and self.last is not calls:  # they share the workspace
            calls.stream, calls.stream_object = self.last.stream, self.last.stream_object
            calls.used_on(calls.stream, calls.stream_object)
        self.last = calls
        return calls

    def made(self, shapes: Any, capturing: bool) -> Any:
        """New calls for a choice of sizes.

        While a CUDA graph is captured, values of weights that `at` computes become part of that graph, so that
        the calls can be used in this graph only.
        """
        if self.gpu and not capturing:
            before = self.bound if self.last is None else self.last.stream_object
            if before is not None:
                torch.cuda.current_stream(self.index).wait_stream(before)
        try:
            calls = self.at_plain(shapes)
        except torch.cuda.OutOfMemoryError:
            if capturing or self.workspace is None or self.workspace.size < 0:
                raise
            self.release()
            calls = self.at_plain(shapes)
        calls.known, calls.wanted = self.known, False  # `prepared` says when launches are recorded
        if self.workspace is not None and self.workspace.grown != self.grown:
            self.drop(len(self.kept), capturing)  # their launches use the memory before
            self.grown, self.streams = self.workspace.grown, set()
        if not capturing:
            self.drop(len(self.kept) - self.KEPT + 1, capturing)
            self.kept[shapes] = calls
        return calls

    def at_plain(self, shapes: Any) -> Any:
        """`at` of a choice of sizes, on the program's device, without inference mode and gradients."""
        elsewhere = self.gpu and torch._C._cuda_getDevice() != self.index
        if elsewhere or torch.is_inference_mode_enabled() or torch.is_grad_enabled():
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.index if self.gpu else -1):
                return self.at(*shapes)
        return self.at(*shapes)  # entering these modes takes as long as several launches

    def release(self) -> None:
        """Forget all choices of sizes and free the workspace, so that a larger one need not fit beside it."""
        if self.last is not None:  # what the next call waits for
            self.bound, self.last = self.last.stream_object, None
        self.kept.clear()
        self.workspace.free()

    def drop(self, count: int, capturing: bool) -> None:
        """Forget the `count` oldest choices of sizes; waits for the device if several streams used their memory, unless
        the caller is capturing a CUDA graph.
        """
        if count <= 0:
            return
        if len(self.streams) > 1 and not capturing:
            torch.cuda.synchronize(self.index)
        for shapes in list(self.kept)[:count]:
            del self.kept[shapes]

    def warm(self, choices: Sequence[Any], states: Any) -> None:
        """Run the kernels once at some choices of sizes, on zeros, and record them; states are restored afterwards."""
        saved = {name: x.clone() for name, x in states.items()}
        for shapes in reversed(choices):
            try:
                calls = self.made(shapes, False)
                calls.wanted, calls.launch_mode = self.graph and calls.gpu, self.launch_mode
                with torch.cuda.device(self.index):
                    calls(*[torch.zeros(s, dtype=t, device=calls.device) for s, t, _ in calls.types[: calls.count]])
                if not self.launch_mode and calls.settled:
                    self.chosen(calls)
            except torch.cuda.OutOfMemoryError:
                continue
        for name, x in saved.items():
            states[name].copy_(x)
        torch.cuda.synchronize(self.index)
        self.drop(len(self.kept), False)


class SizedCudaKernel(CudaKernel):
    """A CUDA C++ kernel whose calls give the number of blocks (`grid`) and integers after the addresses (`sizes`).

    All kernels of a program are compiled together, once per alignment.
    `stored`: binaries of a saved program by alignment in bytes, which are not compiled again.
    """

    stored: ClassVar[dict[int, bytes]] = {}
    together: ClassVar[dict[Any, Any]] = {}  # (architecture, alignment) -> all kernels compiled

    def __init__(self, name: str, block: int, **options: Any) -> None:
        super().__init__(name, 1, block, **options)
        self.configs: dict[Any, Any] = {}  # the last ones, by device and grid

    def __call__(self, *tensors: Any, grid: int, sizes: Any = (), boxes: Any = ()) -> None:  # type: ignore[override]
        from cuda.core import launch

        places = [x.data_ptr() for x in tensors]
        aligned = min([16, *(x & -x for x in places if x)])
        device = [*tensors, *(x for x, *_ in boxes)][0].device.index
        if (device, aligned) not in self.ready:
            self.ready[device, aligned] = self.made(device, aligned)
        kernel, _ = self.ready[device, aligned]
        self.grid = grid
        if boxes:
            self.launch_described(kernel, [*places, *sizes], [self.described(*b) for b in boxes])
        else:
            launch(self, self.config(device), kernel, *places, *sizes)

    def source(self) -> str:
        """The complete CUDA C++ source of all kernels."""
        beside = dict.fromkeys(text for kernel in self.known.values() for text in kernel.beside)
        return "\n".join((CUDA_LIBRARY, *beside, *(kernel.text.lstrip("\n") for kernel in self.known.values())))

    def compiled(self, arch: str, aligned: int = 16) -> Any:
        """All kernels compiled for an architecture, as by `CudaKernel.compiled`. A saved program uses its stored
        binary; NotStored is raised if it has none for this alignment."""
        if (arch, aligned) in self.together:
            return self.together[arch, aligned]
        if not self.stored:
            found = super().compiled(arch, aligned)
        elif aligned in self.stored:
            from cuda.core import ObjectCode

            found = ObjectCode.from_cubin(self.stored[aligned])
        else:
            raise NotStored(f"there are no compiled kernels for operands at multiples of {aligned} bytes")
        self.together[arch, aligned] = found
        return found

    def config(self, device: int) -> Any:
        """The launch configuration for a device and grid; cached."""
        found = self.configs.get((device, self.grid))
        if found is None:
            from cuda.core import LaunchConfig

            if len(self.configs) >= 256:  # sizes come and go
                self.configs.clear()
            major, _ = torch.cuda.get_device_capability(device)
            early = {"programmatic_stream_serialization": True} if self.early and major >= 9 else {}
            found = LaunchConfig(grid=self.grid, block=self.block, shmem_size=self.room, **early)
            self.configs[device, self.grid] = found
        return found


#: helper name -> source
HELPERS: dict[str, str] = {
    **BINARIES,
    **LAUNCHES,
    **{
        name: source.replace("ClassVar[dict[int, bytes]]", "dict[int, bytes]").replace(
            "ClassVar[dict[Any, Any]]", "dict[Any, Any]"
        )
        for name, source in sources_of(__name__).items()
    },
}

__all__ = ["HELPERS", "CallsBySize", "SizedCudaKernel", "Workspace"]
