"""Tests and times one kernel on a GPU: holds its operands and float64 reference, and checks and times its trials (one
choice of tuning parameters each)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern_parser import parse_terms
from ...egraph.types import dtypes
from ...egraph.types.dtypes import torch_dtype
from ...extract.model.clock import Clock
from ...extract.model.kernel import Call
from ...extract.model.meaning import pattern_terms
from ...extract.model.work import is_read, written_into
from ..generate.kernel_text import KernelText, module_of
from ..gpu_context import compiler_loaded
from ..verification import compare
from ..verification.rounding_noise import RoundingSensitivity, kernel_fault
from ..verification.torch_reference import evaluate
from . import gpu_operands
from .gpu_accuracy import LEAST_SIZE, LOST, NORMS, TOLERANCE, accuracy
from .gpu_device import MeasuringDevice, Run
from .loaded_kernel import Arguments, CapturedCalls, LoadedKernel, loading
from .result_check import Wrong

QUICK_US, QUICK_CALLS, QUICK_SAMPLES = 600.0, 40, 3


FIRST_US = 2000.0  # duration of the calls of the first recording, if the host's launches were as short as they seem
ROTATION = 2  # minimum total size of rotating operand sets, as a multiple of the cache size
CACHE_MULTIPLE_ROOMY = 3  # total size of these sets, as a multiple of the cache size, where memory allows
HIDING = 3  # cache-filling copies that hide the host's launch overhead
MOST_CALLS = 200
# most µs of calls that are recorded only so that their operands exceed the cache, a small part of longer times
ROTATING_US = 20_000.0
# µs of a call from which it is timed as few times as possible, because other processes wait for the device meanwhile
SLOW_US = 20_000.0


# number of samples after which sampling stops if the median deviation is below this share of the median
ENOUGH, STEADY = 7, 0.005


class Bench:
    """Test bench of one kernel: operands, float64 reference, and the trials of its schedules.

    `pattern`: the kernel's meaning, as text. `call`: a call of it. `loss`: relative error that the kernel may add by
    rounding its operands. `alone`: context manager entered while the device works, which holds the GPU lock: another
    process times its kernels while this one loads and records its own. `clock`: seconds of the steps.
    """

    def __init__(
        self, device: MeasuringDevice, pattern: str, call: Call, loss: float = 0.0,
        alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.device, self.call, self.alone, self.clock = device, call, alone, clock or Clock()
        self.roots = pattern_terms(parse_terms(pattern), call)
        self.roles = gpu_operands.operand_roles(self.roots)
        self.bases = {n: o for n, o in written_into(self.roots).items() if call.operands[o] == call.outputs[n]}
        # in-place outputs of which a call touches a few rows; those that it also reads are as cold as other operands
        self.unread = {n: o for n, o in self.bases.items() if not is_read(self.roots, n)}
        self.sets: list[Arguments] = []
        self.buffers: list[Any] = []  # bytes of the first set's outputs, between guard zones
        self.tried: dict[int, LoadedKernel] = {}
        self.size = 1.0  # scale of the operand values, besides their roles
        self.loads = False  # whether the kernel's first call loads a library's code (`_load`)
        with self._turn("draw"):
            self._drawn()
        operands = self.sets[0].operands
        untouched = {*self.bases.values()}, {*self.unread}
        tensors = [x for n, x in operands.items() if n not in untouched[0]]
        tensors += [x for n, x in enumerate(self.sets[0].outputs) if n not in untouched[1]]
        self.nbytes = sum(x.numel() * x.itemsize for x in tensors) or 1  # bytes read and written with one set
        floats = [o.type.dtype for o in (*call.operands.values(), *call.outputs) if dtypes.is_float(o.type.dtype)]
        self.tolerance = max([LOST * loss, *(TOLERANCE[d] for d in floats)])
        # relative error from which limits of elements and slices follow
        self.allowed = max([loss, *(compare.KERNEL[d] for d in floats)])
        self.multiplied = next((d for d in ("bfloat16", "float16") if d in floats), "")  # on tensor cores

    @contextlib.contextmanager
    def _turn(self, step: str) -> Iterator[None]:
        """Context manager in which this process has the device; its seconds, without the wait, are those of `step`."""
        with self.alone(), self.clock.running(step):
            yield
            self.device.synchronize()

    def _drawn(self) -> None:
        """Draw the operands and compute the reference."""
        operands = {
            n: gpu_operands.draw(n, o, self.roles.get(n, gpu_operands.OperandRole()), self.device.name, self.size)
            for n, o in self.call.operands.items()
        }
        made = [gpu_operands.guarded_memory(o, self.device.name) for o in self.call.outputs]
        self.buffers, self.sets = [raw for raw, _ in made], [Arguments(operands, [out for _, out in made])]
        self.want = [evaluate(root, operands) for root in self.roots]
        self.before = self._sums(operands.values())

    def _too_large(self) -> bool:
        """Whether the terms overflow when evaluated in their own dtypes although the float64 reference is finite, as a
        recurrence of many steps may."""
        import torch

        values = self.sets[0].operands
        for root, want, out in zip(self.roots, self.want, self.call.outputs, strict=True):
            if dtypes.is_float(out.type.dtype):
                fits = torch.isfinite(want.to(torch_dtype(out.type.dtype)))
                if bool((fits & ~torch.isfinite(evaluate(root, values, wide=False))).any()):
                    return True
        return False

    def _sums(self, tensors: Iterable[Any]) -> Any:
        """A checksum of each tensor's bytes."""
        import torch

        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        sums = [x.view(bits[x.itemsize]).sum(dtype=torch.int64) for x in tensors if x.numel()]
        return torch.stack(sums) if sums else torch.zeros(1, dtype=torch.int64, device=self.device.name)

    # ------------------------------------------------------------ one schedule
    def loaded(self, text: KernelText) -> LoadedKernel:
        """Load the kernel of a text. Nothing is launched, because another process may be timing."""
        import torch

        if text.generated:
            compiler_loaded()
        module = module_of(text)
        tried = LoadedKernel(text, module.run, {n: getattr(module, f"prepare_{n}") for n in text.prepared})
        if text.generated and self.device.name == GPU_KIND:
            with contextlib.suppress(Exception), loading(module):  # errors are reported when the kernel runs
                operands = dict(self.sets[0].operands)
                for n, prepare in tried.prepare.items():
                    operands[n] = _like(prepare(_like(operands[n], "meta")), GPU_KIND)
                scratch = torch.empty(text.scratch, dtype=torch.uint8, device=GPU_KIND)
                module.run(*(operands[n] for n in text.operands), *self.sets[0].outputs, scratch)
        return tried

    def attempt(self, index: int, tried: LoadedKernel) -> dict[str, Any]:
        """Run a schedule once, check its result and time it roughly; returns the reply.

        `index`: number of the trial. Reply: `accuracy` (norms), `cold` (samples in µs). Raises Wrong if the result is
        incorrect or varies between runs.
        """
        try:
            return self._attempt(index, tried)
        finally:
            tried.prepared.clear()

    def _attempt(self, index: int, tried: LoadedKernel) -> dict[str, Any]:
        if self.loads and not self.bases:
            self._load(tried)
        with self.alone():
            with self._turn("check"):
                accuracy, first, once = self._first_run(tried)
            self.tried[index] = tried
            longest = FIRST_US if once < QUICK_US else QUICK_US
            calls = self._call_count(_within(longest / once, 1, QUICK_CALLS), once)
            self._arguments(calls)
        turn = self._recorded(tried, calls)
        if once < QUICK_US and turn.calls < QUICK_CALLS:  # this may be the host's launch time
            with self._turn("sample"):
                (once,) = self._sampled(turn, 1)
            calls = self._call_count(_within(QUICK_US / once, 1, QUICK_CALLS), once)
            turn = self._recorded(tried, calls) if calls > turn.calls else turn
        with self._turn("sample"):
            samples = self._sampled(turn, QUICK_SAMPLES if once < SLOW_US else 1)
            if first is not None and not bool((self._sums(self.sets[0].outputs) == first).all()):
                raise Wrong("results differ between runs")
        tried.us = sorted(samples)[len(samples) // 2]
        return {"accuracy": accuracy, "cold": samples}

    def _load(self, tried: LoadedKernel) -> None:
        """Run a library kernel beside the other process's kernels: in its first call the library chooses and loads code
        on the host, for up to half a second, and the device is idle. One launch disturbs less than that wait."""
        import torch

        with self.clock.running("load"):
            size = tried.text.scratch + 2 * gpu_operands.ZONE
            tried.scratch = torch.empty(size, dtype=torch.uint8, device=self.device.name)
            self._call(tried, self.sets[0])()
            self.device.synchronize()

    def _first_run(self, tried: LoadedKernel) -> tuple[dict[str, float], Any, float]:
        """Run a schedule on the first set of operands and check its result; returns (error norms, checksums of the
        outputs, rough µs of a call). The checksums are None if the outputs may differ between runs."""
        import torch

        size = tried.text.scratch + 2 * gpu_operands.ZONE
        tried.scratch = torch.full((size,), gpu_operands.POISON, dtype=torch.uint8, device=self.device.name)
        for raw in self.buffers:
            raw.fill_(gpu_operands.POISON)
        run, results = self._call(tried, self.sets[0]), list[Any]()
        once = self.device.elapsed(lambda: results.append(run()))
        try:
            accuracy = self.check(tried, results[0])
        except Wrong:
            if self.tried or self.size <= LEAST_SIZE or not self._too_large():
                raise
            self.size /= 2
            self._drawn()
            tried.prepared.clear()
            return self._first_run(tried)
        steady = tried.text.generated and not self.bases and not any(map(_adds, self.roots))
        first = self._sums(self.sets[0].outputs) if steady else None
        again = self._call(tried, self.sets[0], inplace=True)
        if once >= SLOW_US:  # which may be the host's time of a library's first call
            once = self.device.elapsed(again)
        return accuracy, first, once if once >= SLOW_US else min(self.device.laps(again, 3))

    def _call(self, tried: LoadedKernel, where: Arguments, scratch: Any = None, *, inplace: bool = False) -> Run:
        """The kernel bound to one set of operands.

        `scratch`: scratch memory to use; None for that of the trial. `inplace`: operands that are updated in
        place are the outputs themselves, as states are in programs.
        """
        operands = tried.arguments(where)
        if inplace:
            operands |= {o: where.outputs[n] for n, o in self.bases.items()}
        if scratch is None:
            scratch = tried.scratch[gpu_operands.ZONE : gpu_operands.ZONE + tried.text.scratch]
        arguments = [*(operands[n] for n in tried.text.operands), *where.outputs, scratch]
        return lambda: tried.run(*arguments)

    def _calls(self, tried: LoadedKernel, where: Sequence[Arguments]) -> list[Run]:
        """The kernel bound to each set of operands, each with separate scratch memory if scratch is smaller than the
        operands.

        Scratch memory is then as cold as operands are, as in a program. (Split reductions that reused one scratch
        buffer took up to a microsecond longer.)
        """
        import torch

        size = tried.text.scratch
        if not 0 < size <= self.nbytes:
            return [self._call(tried, one, inplace=True) for one in where]
        buffers = torch.empty((len(where), -(-size // 256) * 256), dtype=torch.uint8, device=self.device.name)
        return [self._call(tried, one, room[:size], inplace=True) for one, room in zip(where, buffers, strict=True)]

    def check(self, tried: LoadedKernel, result: Any) -> dict[str, float]:
        """Check a result; returns its error norms (`accuracy`), maximum over outputs.

        Raises Wrong if the result is incorrect, or if the kernel wrote outside its outputs or to its inputs.
        """
        import torch

        several = len(self.call.outputs) > 1
        answers = (result if several else [result]) if tried.text.fresh else self.sets[0].outputs
        kept = (self._sums(self.sets[0].operands.values()) == self.before).all()
        guards = (gpu_operands.is_guard_intact(raw) for raw in (*self.buffers, tried.scratch))
        unchanged, *intact = torch.stack([kept, *guards]).tolist()
        if not all(intact):
            raise Wrong("it writes outside its output or scratch")
        if not unchanged:
            raise Wrong("it writes to its inputs")
        kinds = [o.type for o in self.call.outputs]
        leaves = {str(n.attr("name")): n.dtype for n in topological(self.roots) if n.op == "param"}
        widened = {
            n: self.sets[0].operands[n].to(torch_dtype(dtype)) for n, dtype in leaves.items()
        }  # from storage dtypes
        graph = Graph.of(list(self.roots), params=widened)
        disturbed = RoundingSensitivity(graph, {}, self.device.name, multiplied=self.multiplied)
        checked = enumerate(zip(answers, self.want, kinds, strict=True))
        found = [self._compared(*one, k, disturbed) for k, one in checked]
        return {norm: max(f[norm] for f in found) for norm in NORMS}

    def _compared(self, got: Any, want: Any, kind: Type, k: int, disturbed: RoundingSensitivity) -> dict[str, float]:
        """The error norms of output `k`."""
        if tuple(got.shape) != tuple(want.shape) or got.dtype != torch_dtype(kind.dtype):
            raise Wrong(f"the result is {got.dtype}{list(got.shape)}, not {kind}")
        if dtypes.is_float(kind.dtype):
            found = accuracy(got, want, kind.dtype)
            if not found["rel_fro"] <= self.tolerance:
                raise Wrong(f"relative error {found['rel_fro']:.3g}")
        else:
            found, want = dict.fromkeys(NORMS, 0.0), want.to(got.dtype)
        if fault := kernel_fault(got, want, k, kind.dtype, self.allowed, disturbed):
            raise Wrong(fault.message, fault.ratio)
        return found

    # ------------------------------------------------------------ time
    def _call_count(self, calls: int, us: float) -> int:
        """Number of calls of `us` µs to capture: `calls`, or more if the operand sets then exceed the cache and fit the
        memory budget, and these calls take at most ROTATING_US."""
        needed = -(-ROTATION * self.device.cache_bytes // self.nbytes)
        most = min(MOST_CALLS, self.device.budget_bytes // self.nbytes, ROTATING_US / us)
        return max(calls, needed) if needed <= most else calls

    def _arguments(self, calls: int) -> list[Arguments]:
        """Enough operand sets for `calls` consecutive calls to miss the cache, within the memory budget."""
        most = self.device.budget_bytes // self.nbytes
        wanted = min(calls, -(-CACHE_MULTIPLE_ROOMY * self.device.cache_bytes // self.nbytes), max(1, most))
        if len(self.sets) < wanted:
            with self._turn("copy"):
                self.sets += self._copied(wanted - len(self.sets))
        return self.sets[:wanted]

    def _copied(self, count: int) -> list[Arguments]:
        """Copies of the first set. Operands that are updated in place, and outputs that update one and are not read,
        are shared by all sets."""
        first, device = self.sets[0], self.device.name
        shared = {*self.bases.values()}
        operands = {
            n: [first.operands[n]] * count if n in shared else gpu_operands.copies(first.operands[n], o, count)
            for n, o in self.call.operands.items()
        }
        outputs = [
            [first.outputs[n]] * count if n in self.unread else gpu_operands.guarded_memories(o, count, device)
            for n, o in enumerate(self.call.outputs)
        ]
        return [Arguments({n: x[i] for n, x in operands.items()}, [x[i] for x in outputs]) for i in range(count)]

    def _recorded(self, tried: LoadedKernel, calls: int, *, cold: bool = True) -> CapturedCalls:
        """Capture `calls` calls in a row.

        Cold calls miss the cache: either the rotating operand sets exceed the cache, or the cache is overwritten before
        each replay.
        """
        where = self._arguments(calls) if cold else self.sets[:1]
        if tried.prepare:
            with self._turn("prepare"):
                for one in where:
                    tried.arguments(one)
        with self.clock.running("record"):
            bound = self._calls(tried, where)
            replay = self.device.capture([bound[i % len(bound)] for i in range(calls)])
        return CapturedCalls(replay, calls, not cold or len(where) * self.nbytes >= ROTATION * self.device.cache_bytes)

    def _sampled(self, turn: CapturedCalls, rounds: int) -> list[float]:
        """Times in µs per call, one for each of `rounds` replays.

        (If the cache is overwritten before each replay, the device may wait for the host: on an H200, with
        compilers running, twenty calls took 1 to 5 µs longer per call, and not equally for all schedules.)
        """
        samples: list[float] = []
        turn.replay()
        while len(samples) < rounds and not _steady(samples):
            if turn.rotating:
                laps = self.device.laps(turn.replay, min(ENOUGH, rounds - len(samples)))
                samples += [us / turn.calls for us in laps]
            else:
                for _ in range(HIDING):
                    reference(self.device)()
                samples.append(self.device.elapsed(turn.replay) / turn.calls)
        return samples

    def measure(self, index: int) -> dict[str, Any]:
        """Time the tried schedule `index` in full and check it again; returns the reply.

        Reply: `cold` and `hot` (samples in µs), `accuracy` (norms), `reference` (µs of a fixed kernel, to recognize a
        slow device) and `clock_mhz`.
        """
        tried = self.tried[index]
        try:
            return self._measured(tried)
        finally:
            tried.prepared.clear()

    def _measured(self, tried: LoadedKernel) -> dict[str, Any]:
        longest = self.device.longest_us
        calls = self._call_count(_within(longest / tried.us, 1, MOST_CALLS), tried.us)
        rounds = self.device.rounds if tried.us < SLOW_US else QUICK_SAMPLES
        turns = self._recorded(tried, calls), self._recorded(tried, calls, cold=False)
        with self._turn("sample"):
            compared = [self.device.elapsed(reference(self.device)) for _ in range(3)]
            cold = self._sampled(turns[0], rounds)
            hot = self._sampled(turns[1], max(3, rounds // 2))
        with self._turn("check"):
            result = self._call(tried, self.sets[0])()
            self.device.synchronize()
            found = self.check(tried, result)
        return {
            "cold": cold,
            "hot": hot,
            "accuracy": found,
            "reference": compared,
            "clock_mhz": self.device.clock_mhz(),
        }


def _adds(root: Tensor) -> bool:
    """Whether the kernel of a term adds to elements of its result in any order, so that results vary between runs."""
    return root.op == "scatter_elements" and root.attr("mode") == "add"


def _within(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))


def _like(x: Any, device: str) -> Any:
    """An uninitialized tensor with the shape, strides and dtype of another."""
    import torch

    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def _steady(samples: list[float]) -> bool:
    if len(samples) < ENOUGH:
        return False
    middle = sorted(samples)[len(samples) // 2]
    return sorted(abs(s - middle) for s in samples)[len(samples) // 2] < STEADY * middle


_flushing: dict[str, Run] = {}


def reference(device: MeasuringDevice) -> Run:
    """Function that runs a fixed kernel, a copy of twice the cache size: its time tells whether the device is slow, and
    it evicts the cache."""
    if device.name not in _flushing:
        import torch

        source = torch.full((2 * device.cache_bytes,), 7, dtype=torch.uint8, device=device.name)
        target = torch.empty_like(source)
        _flushing[device.name] = lambda: target.copy_(source)
    return _flushing[device.name]
