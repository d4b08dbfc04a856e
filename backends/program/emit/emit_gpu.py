"""Emits Python source for a GPU plan (the chosen kernel calls). The source runs without this package, on Torch tensors.

    def bind(weights, states=None, device="cuda", graph=True, launch_mode=""):
        memory = device_bytes(...)                     intermediate values have fixed addresses
        v3 = tensor_at(memory, 0, (1, 768), torch.float32)
        def launch(x, result):
            torch.add(x, w0, out=v3)  # add(x, y)      straight-line code on the caller's input and a fresh result
            torch.tanh(v3, out=result)
            return result,
        return Calls(launch, ...)                      chooses how calls launch, see gpu_calls.py

Values share memory by liveness. `launch` allocates nothing except results that kernels allocate; in a CUDA graph these
are in the graph's pool. Inputs are never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ....costdb.keys.device import GPU_KIND
from ....egraph.ops.ops import Type
from ....egraph.types import dtypes
from ....egraph.types.dims import concrete
from ....extract.model.kernel import Template, contiguous
from ....extract.model.plan import Plan, Step, Value
from ...ir.source_text import identifier, indented, literal, signature
from ...runtime.views import torch_view
from . import memory_plan as memory
from .emit_cpu import STATEMENTS, ProgramEmitter
from .emitted_program import EmittedProgram


def emit_cuda(plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
    """Emit the source of the program that runs `plan` on a GPU. With `reuse_outputs`, the next call overwrites the
    outputs."""
    return GpuProgramEmitter(plan, reuse_outputs).emit()


def torch_dtype(dtype: str) -> str:
    """Python expression of the Torch dtype called `dtype`."""
    return f"torch.{dtypes.check(dtype)}"


#: Families of library kernels that multiply: where float32 is involved, the process' rule for it must not reach them.
MULTIPLYING = frozenset(["contraction", "conv", "attention", "recurrent"])
HALVES = frozenset(["float16", "bfloat16"])


@dataclass
class GpuProgramEmitter(ProgramEmitter):
    """Emitter of the source of programs for GPU plans, in which every value is a Torch tensor.

    Values have fixed addresses, except inputs, results that are written to fresh memory, and results that kernels
    allocate.
    """

    own: set[str] = field(default_factory=set)  # generated kernels that are launched
    by_library: set[int] = field(default_factory=set)  # roots that library kernels read or write
    strict: bool = False  # whether library kernels multiply float32

    alignment = 256  # bytes: alignment of CUDA's allocator, sufficient for tensor maps

    def _kind(self, template: Template) -> str:
        return "torch"

    def _home(self, value: int) -> str:
        return "torch"

    def _reserve(self) -> None:
        from ..helpers.helper_functions import all_helpers

        self.taken |= all_helpers().keys()
        super()._reserve()
        for v in sorted(self.fresh_outputs):
            self.names[v, "torch"] = identifier(self.plan.values[v].name or f"v{v}", self.taken)

    def _written(self, step: Step, names: Mapping[str, str]) -> str:
        text = super()._written(step, names)
        # made in `bind`: made in a call that the caller captures, they would be zero only when that graph has run
        text = _COUNTERS.sub(lambda _: self._once("counters(device)", "counts"), text)
        statements = [s.strip() for s in STATEMENTS.split(text)]
        started = [_LAUNCH.match(s) for s in statements if not s.endswith(":")]  # without conditions on sizes
        known = self.definitions if step.template.source is not None else {}
        self.own |= {found[1] for found in started if found and found[1] in known}
        if not all(found and found[1] in known for found in started):
            self.by_library |= {self.root[v] for v in (*step.outputs, *(v for _, v in step.inputs))}
            narrow = {o.type.dtype for o in step.call.buffers.values()} <= HALVES
            exact = narrow and step.template.family == "contraction" and "_wide" not in step.template.name
            self.strict |= step.template.family in MULTIPLYING and not exact
        return text

    def _strided_empty(self, value: int) -> str:
        """Text of (shape, dtype, strides) of a result, with strides None if they are row-major."""
        v = self.plan.values[value]
        shape = v.type.shape
        strides = "None" if v.strides == contiguous(shape) else literal(v.strides)  # type: ignore[arg-type]
        return f"({literal(shape)}, {torch_dtype(v.type.dtype)}, {strides})"

    def _view(self, value: int, kind: str) -> str:
        step = self.makers[value]
        ((operand, source),) = step.inputs
        call = replace(step.call, names={operand: self.ref(source, "torch")})
        return torch_view(step.template, call) or step.template.write(call)

    def _buffer(self, v: Value) -> str:
        if v.id in self.layout.pinned:
            return self.state_names[self.layout.pinned[v.id]]  # written directly to the state's memory
        offset = self.layout.offsets[self.layout.buffer[v.id]]
        return self._place(offset, concrete(v.type.shape), v.type.dtype, v.strides)

    def _place(self, offset: int, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...]) -> str:
        self._use("device_bytes")
        layout = "" if strides == contiguous(shape) else f", {literal(strides)}"
        return f"{self._use('tensor_at')}(memory, {offset}, {literal(shape)}, {torch_dtype(dtype)}{layout})"

    def _weight(self, value: int) -> str:
        term = self.plan.weights[value]
        if term.op == "full":
            number, shape = literal(term.attr("value")), literal(concrete(term.shape))
            return (
                f"torch.full({shape}, {number}, dtype={torch_dtype(self.plan.values[value].type.dtype)}, device=device)"
            )
        v = self.plan.values[value]
        # A single-kernel harness (tuning/single_kernel.py) passes operands with their own strides.
        lies = "" if v.strides == contiguous(concrete(v.type.shape)) else ", False"
        return f"{self._use('uploaded')}(weights[{self._key(value)!r}], device{lies})"

    def _state(self, key: str, kind: Type) -> str:
        shape = literal(concrete(kind.shape))
        return f"{self._use('kept')}(states, {key!r}, {shape}, {torch_dtype(kind.dtype)}, device)"

    def _scratch(self, step: Step, kind: str) -> str:
        offset, size = self.layout.scratch[step.output]
        return self._once(self._place(offset, (size,), "uint8", (1,)), "scratch")

    # ------------------------------------------------------------ results
    def _result(self, value: int) -> str:
        return self.ref(value, "torch")

    def _copy(self, name: str) -> str:
        return f"{name}.clone()"

    def _assign(self, place: str, name: str) -> str:
        return f"{place}.copy_({name})"

    def _takes_tensors(self) -> bool:
        """False: GPU programs take tensors only."""
        return False

    def _finish(self) -> None:
        super()._finish()
        copied = (*self.plan.outputs, *self.plan.updates.values())
        self.by_library |= {self.root[v] for v in copied} - self.fresh_outputs

    def _row_major(self) -> frozenset[str]:
        """Empty, because the device transposes a weight a thousand times as fast as the host."""
        return frozenset()

    def _fresh_bytes(self) -> int:
        """Peak bytes allocated besides workspace and weights: in calls (results, copies of inputs and outputs, packed
        weights), or in `bind` if that is more."""
        again = self.packed - sum(term.type.nbytes for key, term in self.weights.items() if key not in self.plain)
        places = sum(memory.nbytes(leaf.type) for leaf in self.plan.graph.inputs)
        copies = 0 if self.reuse_outputs else sum(memory.nbytes(self.plan.values[v].type) for v in self.plan.outputs)
        turned = [t.type.nbytes for t in self.weights.values() if t.op != "param"]  # two copies exist for a moment
        return max(super()._fresh_bytes() + places + copies + max(again, 0), *turned, 0)

    def _function(self) -> list[str]:
        fixed = [f"memory = device_bytes({self.layout.size}, device)"] if "device_bytes" in self.helpers else []
        states = ["states = {} if states is None else states"] if self._state_types() else []
        updates = ", and states, which calls update" if states else ""
        launch, calls = self._calls()
        return [
            f'def bind(weights, states=None, device="{GPU_KIND}", graph=True, launch_mode=""):',
            f'    """Makes the program for given weights{updates}. With `graph`, launches are recorded; see `Calls` for `launch_mode`."""',
            *indented([*states, *fixed, *self.once, *launch], 4),
            f"    return {calls}, launch_mode=launch_mode)",
        ]  # fmt: skip

    def _calls(self) -> tuple[list[str], str]:
        """(lines that define `launch`, text of the `Calls` object without its last argument, `launch_mode`)."""
        self._use("Calls")
        self._use("Launches")
        read = {v.name: v.id for v in self.plan.values if v.origin == "input"}
        results = sorted(self.fresh_outputs)
        given = [*self.inputs.values(), *(self.names[v, "torch"] for v in results)]
        own = sorted(self.own)
        kernels = [*(["*"] if own else []), *(f"{name}=kernels.of({name})" for name in own)]
        library = [i for i, v in enumerate((*map(read.get, self.inputs), *results)) if v in self.by_library]
        types = [f"({literal(leaf.shape)}, {torch_dtype(leaf.dtype)})" for leaf in self.plan.graph.inputs]
        options = [f"reuse={self.reuse_outputs}", f"library={library}", f"strict={self.strict}"]
        options += ["states=states"] if self._state_types() else []
        options += ["memory=memory"] if "device_bytes" in self.helpers else []
        lines = [
            f"kernels = Launches({self._variants()})", "",
            f"def launch({', '.join([*given, *kernels])}):",
            f'    """{signature(self.plan)}"""', *indented(self.each, 4), "",
            f"inputs = [{', '.join(types)}]",
            f"results = [{', '.join(map(self._strided_empty, results))}]",
        ]  # fmt: skip
        return lines, f"Calls(launch, kernels, inputs, results, device, graph, {', '.join(options)}"

    def _variants(self) -> str:
        """Text of the arguments of `Launches`: "", since the launches themselves record compiled kernels."""
        return ""


_LAUNCH = re.compile(r"(\w+)[\[(]")
_COUNTERS = re.compile(r"\bcounters\(\w+\.device\)")
__all__ = ["GpuProgramEmitter", "emit_cuda", "torch_dtype"]
