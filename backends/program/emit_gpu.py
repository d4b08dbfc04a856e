"""Emitter of Python source for a GPU plan. The source runs without this package, on Torch tensors.

    def bind(weights, states=None, device="cuda", graph=True):
        memory = device_bytes(...)                     all addresses are fixed,
        x = torch.empty((1, 768), ...)                 those of inputs too,
        v3 = tensor_at(memory, 0, (1, 768), torch.float32)
        def launch():
            torch.add(x, w0, out=v3)  # add(x, y)      so the straight-line code has no arguments
            return v3,
        return Replay(launch, (x,), ...)               and can be captured as a CUDA graph

Values share memory by liveness. `launch` allocates nothing except results that kernels allocate; these are in the
graph's pool.
"""

from __future__ import annotations

from dataclasses import replace

from ...egraph.ir import dtypes
from ...egraph.ir.dims import concrete
from ...egraph.ir.ops import Type
from ...extract.model.kernel import Plan, Step, Template, Value, contiguous
from ..ir.source_text import identifier, indented, literal, signature
from ..runtime.views import torch_view
from . import memory_plan as memory
from .emit_cpu import Emitted, Emitter


def emit_cuda(plan: Plan, *, reuse_outputs: bool = False) -> Emitted:
    """Emit a GPU plan. With `reuse_outputs`, the next call overwrites the outputs."""
    return CudaEmitter(plan, reuse_outputs).emit()


def torch_dtype(dtype: str) -> str:
    """The Torch dtype as source text."""
    return f"torch.{dtypes.check(dtype)}"


class CudaEmitter(Emitter):
    """Emitter for GPU plans: every value is a Torch tensor, at a fixed address except where kernels allocate
    results."""

    alignment = 256  # bytes: alignment of CUDA's allocator, sufficient for tensor maps

    def _kind(self, template: Template) -> str:
        return "torch"

    def _home(self, value: int) -> str:
        return "torch"

    def _dynamic(self, value: int) -> bool:
        return self.root[value] in self.fresh

    def _fresh_outputs(self) -> set[int]:
        return set()

    def _reserve(self) -> None:
        super()._reserve()
        for leaf in self.plan.graph.inputs:
            self.once.append(f"{self.inputs[leaf.attr('name')]} = {self._empty(leaf.type)}")

    def _empty(self, kind: Type) -> str:
        return f"torch.empty({literal(concrete(kind.shape))}, dtype={torch_dtype(kind.dtype)}, device=device)"

    def _view(self, value: int, kind: str) -> str:
        step = self.makers[value]
        ((operand, source),) = step.inputs
        call = replace(step.call, names={operand: self.ref(source, "torch")})
        return torch_view(step.template, call) or step.template.write(call)

    def _buffer(self, v: Value) -> str:
        if v.id in self.layout.pinned:
            return self.ref(self.layout.pinned[v.id], "torch")  # written directly to the state's memory
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

    def _handed(self, value: int) -> bool:
        """Whether `launch` may return a result without a copy: the caller gets a copy before the next call. State
        memory may change within this call, so it is copied."""
        origin = self.plan.values[self.root[value]].origin
        return origin == "kernel" or (origin != "state" and not self.reuse_outputs)

    def _finish(self) -> None:
        results = []
        for v in self.plan.outputs:
            name = self._result(v)
            if not self._handed(v):
                copied = self._copy(name)
                name = identifier(f"result{v}", self.taken)
                self.each.append(f"{name} = {copied}")
            results.append(name)
        self._update_states()
        self.each.append(f"return {', '.join(results)}{',' if len(results) == 1 else ''}")

    def _row_major(self) -> frozenset[str]:
        """Empty: the device transposes a weight a thousand times as fast as the host."""
        return frozenset()

    def _fresh_bytes(self) -> int:
        """Peak allocation: of `launch` plus input buffers, output copies and packed weights; or of `bind`, if
        larger."""
        again = self.packed - sum(term.type.nbytes for key, term in self.weights.items() if key not in self.plain)
        places = sum(memory.nbytes(leaf.type) for leaf in self.plan.graph.inputs)
        copies = 0 if self.reuse_outputs else sum(memory.nbytes(self.plan.values[v].type) for v in self.plan.outputs)
        turned = [t.type.nbytes for t in self.weights.values() if t.op != "param"]  # two copies exist for a moment
        return max(super()._fresh_bytes() + places + copies + max(again, 0), *turned, 0)

    def _function(self) -> list[str]:
        self._use("Replay")
        fixed = [f"memory = device_bytes({self.layout.size}, device)"] if "device_bytes" in self.helpers else []
        states = ["states = {} if states is None else states"] if self._state_types() else []
        places = "".join(f"{name}, " for name in self.inputs.values()).rstrip(" " if len(self.inputs) == 1 else ", ")
        updates = ", and states, which calls update" if states else ""
        return [
            'def bind(weights, states=None, device="cuda", graph=True):',
            f'    """Makes the program for given weights{updates}; with `graph`, it is recorded as a CUDA graph."""',
            *indented([*states, *fixed, *self.once], 4), "",
            "    def launch():", f'        """{signature(self.plan)}"""', *indented(self.each, 8), "",
            f"    return Replay(launch, ({places}), device, graph, {self.reuse_outputs})",
        ]  # fmt: skip


__all__ = ["CudaEmitter", "emit_cuda", "torch_dtype"]
