"""Emitter of GPU programs in which runs of CUDA C++ kernels are persistent kernels.

A run is a maximal sequence of steps whose kernels have a function of one tile (`TileFunction`); other steps are launched
between the runs, as in other programs. A persistent kernel has no launches between its stages, and reads weights ahead while
stages wait for each other.

        stages0 = stage_table([[0, 40, 0, 0, 0, v3, w0, v5], ...], device)      fixed addresses are in a table
        done0 = torch.zeros(..., dtype=torch.int32, device=device)
        def launch(x, result):
            persistent0(stages0, done0, x, result)                              those of a call are arguments
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...extract.model.kernel import output_names
from ...extract.model.plan import Plan, Step
from ..ir.kernel import Unfusable
from ..ir.source_text import identifier, one_line
from ..ir.tile_function import TileFunction
from . import memory_plan as memory
from .emit_cpu import EmittedProgram
from .emit_gpu import GpuProgramEmitter
from .persistent_kernel import STAGE_LIBRARY, TABLE, THREADS, PersistentKernel, Stage, refusal
from .stage_order import Accesses, Span, order_of

LEAST = 2  # steps of a persistent kernel
MOST = 400  # steps of a persistent kernel


def emit_persistent(plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
    """Emitted program of a GPU plan with persistent kernels where the plan allows them."""
    return PersistentEmitter(plan, reuse_outputs).emit()


@dataclass
class PersistentEmitter(GpuProgramEmitter):
    """Emitter of GPU programs with persistent kernels."""

    functions: dict[int, TileFunction] = field(default_factory=dict)  # first output of a step -> its function
    refused: dict[int, str] = field(default_factory=dict)  # first output of a step -> why it has none
    runs: dict[int, list[Step]] = field(default_factory=dict)  # first output of a run's first step -> its steps
    written: set[int] = field(default_factory=set)  # first outputs of the steps of runs

    def _reserve(self) -> None:
        self._divide()
        super()._reserve()
        others = [s for s in self.plan.steps if s.template.source is not None and s.output not in self.written]
        kept = {name for s in others for name in s.template.source(s.call)}  # type: ignore[misc]
        self.definitions = {name: text for name, text in self.definitions.items() if name in kept}

    def _divide(self) -> None:
        """Find the runs of steps with tile functions."""
        run: list[Step] = []
        for step in (s for s in self.plan.steps if not s.is_view):
            found = self._function_of(step)
            if isinstance(found, str):
                self.refused[step.output] = found
                self._close(run)
                run = []
                continue
            self.functions[step.output] = found
            if len(run) == MOST:
                self._close(run)
                run = []
            run.append(step)
        self._close(run)

    def _close(self, run: list[Step]) -> None:
        if len(run) >= LEAST:
            self.runs[run[0].output] = run
            self.written |= {s.output for s in run}

    def _function_of(self, step: Step) -> TileFunction | str:
        """The function of one tile of a step's kernel, or why there is none."""
        make = getattr(step.template, "tile", None)
        if make is None:
            return f"{step.template.name} is not generated in CUDA C++"
        values = {**dict(step.inputs), **dict(zip(output_names(len(step.outputs)), step.outputs))}
        for output, base in step.template.bases.items():  # type: ignore[attr-defined]
            if self._place_of(values[output]) != self._place_of(values[base]):
                return f"{step.template.name} writes a part of another value"
        try:
            found: TileFunction = make(step.call)
        except Unfusable as error:
            return f"{step.template.name}: {error}"
        return refusal(found) or found

    # ------------------------------------------------------------ memory
    def _place_of(self, value: int) -> Span:
        """The memory of a value's root."""
        root = self.root[value]
        root = self.layout.pinned.get(root, root)
        found = self.plan.values[root]
        if root in self.layout.buffer:
            start = self.layout.offsets[self.layout.buffer[root]]
            return Span("workspace", start, start + memory.nbytes(found.type))
        return Span((found.origin, found.name) if found.origin == "state" else root)

    def _accesses(self, step: Step) -> Accesses:
        """Memory that a step reads and writes."""
        writes = [self._place_of(v) for v in step.outputs]
        if step.output in self.layout.scratch:
            start, size = self.layout.scratch[step.output]
            writes.append(Span("workspace", start, start + size))
        return Accesses(tuple(self._place_of(v) for _, v in step.inputs), tuple(writes))

    # ------------------------------------------------------------ text
    def _step(self, step: Step) -> None:
        if step.output not in self.written:
            super()._step(step)
        elif (run := self.runs.get(step.output)) is not None:
            self._launch(run)

    def _launch(self, run: list[Step]) -> None:
        """Emit the launch of a run's persistent kernel."""
        given: dict[str, int] = {}
        stages = [Stage(self.functions[s.output], self._operands(s, given)) for s in run]
        name = identifier(f"persistent{len(self.own)}", self.taken)
        order = order_of([self._accesses(s) for s in run])
        kernel = PersistentKernel(name, stages, order, len(given))
        if kernel.table_bytes > TABLE:
            middle = len(run) // 2
            self._launch(run[:middle])
            self._launch(run[middle:])
            return
        counters = self._once(f"torch.zeros({kernel.counters}, dtype=torch.int32, device=device)", f"{name}_done")
        rows = ",\n    ".join(kernel.rows(counters))
        self._use("stage_table")
        table = self._once(f"stage_table([\n    {rows},\n], device)", f"{name}_stages")
        self.definitions["STAGE_LIBRARY"] = f'STAGE_LIBRARY = r"""{STAGE_LIBRARY}"""\n'
        for f in kernel.functions:  # several persistent kernels may have the same ones
            self.definitions[f.name] = f'{f.name} = r"""\n{f.text}"""\n'
        beside = ", ".join(["STAGE_LIBRARY", *(f.name for f in kernel.functions)])
        self.definitions[name] = (
            f'{name} = CudaKernel("{name}", 0, {THREADS}, room={kernel.room}, beside=({beside}), '
            f'text=r"""\n{kernel.text}""")\n'
        )
        self.own.add(name)
        for i, s in enumerate(run):
            waits = ", ".join(map(str, order.waits[i]))
            self.each.append(f"# {i}: {one_line(s.doc or s.template.name)}{f' (after {waits})' if waits else ''}")
        self.each.append(f"{name}({', '.join([table, counters, *given])})")

    def _operands(self, step: Step, given: dict[str, int]) -> Mapping[str, str | int]:
        """Operands of a step's tile function; tensors with other addresses in each call are added to `given`."""
        self._setup(step.template)
        template: Any = step.template
        outputs = dict(zip(output_names(len(step.outputs)), step.outputs))
        names = {
            o: self._prepared(step, o, v) if o in template.prep else self.ref(v, "torch") for o, v in step.inputs
        } | {o: self.ref(v, "torch") for o, v in outputs.items()}
        moving = {o for o, v in {**dict(step.inputs), **outputs}.items() if o not in template.prep and self._dynamic(v)}
        if step.output in self.layout.scratch:
            names["scratch"] = self._scratch(step, "torch")
        texts = template.tile_operands(replace(step.call, names=names))
        return {o: given.setdefault(t, len(given)) if o in moving else t for o, t in texts.items()}
