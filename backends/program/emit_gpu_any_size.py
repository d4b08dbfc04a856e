"""Emitter for GPU plans with free sizes: the emitted program runs at every size, and a new size compiles nothing.

    def bind(weights, states=None, device="cuda", graph=True):
        w0 = uploaded(weights['w'], device)            size-independent objects are made once
        workspace = Workspace(device)
        def at(x_shape):                               called on the first call at a size
            T = x_shape[0]
            size0 = max(2048*T, 4096*T)                the memory plan, as expressions
            spaces = workspace.take(size0 + …)
            v3 = spaces[torch.float16].as_strided((T, 1024), (1024, 1), 0)
            def launch(x):                             kernels take sizes as arguments
                reduction_sized_…[(T,)](x, w0, v3, T, num_warps=4)
                …
            return launch
        return CallsBySize(at, workspace, device, graph)

The memory plan assigns values to slots by liveness, once; the bytes of a slot are the largest of its values' at a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...egraph.ir.composite_ops import expand
from ...egraph.ir.dims import Dim, concrete, parse
from ...egraph.ir.dtypes import itemsize
from ...egraph.ir.graph import Tensor, structural_digest
from ...errors import UsageError
from ...extract.model.kernel import Operand, Step, Value, contiguous
from ...extract.model.sizes import bound_call
from ..ir.source_text import identifier, indented, literal, signature
from ..runtime.views import torch_view
from . import memory_plan as memory
from .emit_any_size import SizedEmitter, plain_call
from .emit_cpu import Emitter
from .emit_gpu import CudaEmitter, torch_dtype

ALIGNMENT = 256  # bytes: alignment of CUDA's allocator, sufficient for tensor maps


@dataclass
class SizedCudaEmitter(CudaEmitter, SizedEmitter):
    """Emitter state for a GPU plan with free sizes: sizes, weights and scopes as in programs of the CPU, values as
    tensors."""

    # ------------------------------------------------------------ where values are
    def _reserve(self) -> None:
        self.taken |= {"workspace", "spaces"}
        SizedEmitter._reserve(self)
        self.slot_of, self.slot_sizes = slots(self.spans, self.plan.sizes)

    def _dynamic(self, value: int) -> bool:
        return Emitter._dynamic(self, value)

    def _fresh_outputs(self) -> set[int]:
        return Emitter._fresh_outputs(self)

    def _definition(self, value: int, kind: str) -> str:
        return SizedEmitter._definition(self, value, kind)

    def _buffer(self, v: Value) -> str:
        if v.id in self.layout.pinned:
            return self.ref(self.layout.pinned[v.id], "torch")
        shape, dtype = literal(v.type.shape), torch_dtype(v.type.dtype)
        if v.id in self.fresh_outputs:
            made = "torch.empty(" if v.strides == contiguous(v.type.shape) else f"torch.empty_strided({{}}, {literal(v.strides)}, "  # type: ignore[arg-type]  # fmt: skip
            head = f"{made}{shape}, " if "{}" not in made else made.format(shape)
            return f"{head}dtype={dtype}, device=device)"
        return self._space(self.slots[self.layout.buffer[v.id]], v.type.shape, v.strides, v.type.dtype)

    def _space(self, span: int, shape: Sequence[Dim], strides: Sequence[Dim], dtype: str) -> str:
        """A tensor in the workspace."""
        self._use("Workspace")
        start = f"offset{self.slot_of[span]}"
        offset = start if itemsize(dtype) == 1 else f"{start} // {itemsize(dtype)}"
        return f"spaces[{torch_dtype(dtype)}].as_strided({literal(tuple(shape))}, {literal(tuple(strides))}, {offset})"

    def _scratch(self, step: Step, kind: str) -> str:
        span, _ = self.scratches[step.output]
        assert step.template.scratch is not None
        return self._once(self._space(span, (step.template.scratch(step.call),), (1,), "uint8"), "scratch")

    # ------------------------------------------------------------ weights
    def _weight(self, value: int) -> str:
        term = self.plan.weights[value]
        return self._value(term) if self._sized(term) else CudaEmitter._weight(self, value)

    def _loaded(self, node: Tensor) -> str:
        if node.op == "full":
            shape, dtype = literal(node.shape), torch_dtype(node.dtype)
            return self._line("w", f"torch.full({shape}, {literal(node.attr('value'))}, dtype={dtype}, device=device)")
        digest = structural_digest(node)
        if digest not in self.keys:
            base = str(node.attr("name")) if node.op == "param" else f"w{len(self.keys)}_base"
            self.keys[digest] = key = identifier(base, self.key_names)
            self.weights[key] = node
        self.plain.add(self.keys[digest])
        return self._line(self.keys[digest], f"{self._use('uploaded')}(weights[{self.keys[digest]!r}], device)")

    def _made(self, node: Tensor) -> str:
        shape, dtype = literal(node.shape), torch_dtype(node.dtype)
        if node.op == "full":
            return self._line("w", f"torch.full({shape}, {literal(node.attr('value'))}, dtype={dtype}, device=device)")
        if node.op == "iota":
            axis = node.attr("axis")
            line = literal(tuple(-1 if i == axis else 1 for i in range(node.rank)))
            text = f"torch.arange({literal(node.shape[axis])}, device=device).to({dtype}).reshape({line})"
            return self._line("positions", f"{text}.expand({shape}).contiguous()")
        return self._computed(node)

    def _computed(self, node: Tensor) -> str:
        from ..library.torch_cuda import BACKEND

        operands = [Operand(a.type, contiguous(a.shape)) for a in node.args]  # type: ignore[arg-type]
        for template in BACKEND.templates:
            call = plain_call(template, node, operands)
            if call is None or (
                template.applies is not None and not template.applies(bound_call(call, self.plan.sizes))
            ):
                continue
            names = dict(zip(call.operands, [self.computed[a] for a in node.args]))
            named = replace(call, names=names)
            self._setup(template)
            name = identifier(f"w_{node.op}", self.taken)
            self.written.add(name)
            if template.family == "view" or not template.writes_out(call):
                text = (torch_view(template, named) if template.family == "view" else None) or template.write(named)
                self.once.append(f"{name} = ({text}).contiguous()")
            else:
                shape, dtype = literal(node.shape), torch_dtype(node.dtype)
                self.once.append(f"{name} = torch.empty({shape}, dtype={dtype}, device=device)")
                self.once += template.write(replace(call, names={**names, "out": name})).split("; ")
            return name
        if not node.entry.composite:
            raise UsageError(f"{node.op} of weights has no kernel at free sizes", hint="fix the sizes")
        return self._value(expand(node))

    # ------------------------------------------------------------ results, the file
    def _finish(self) -> None:
        Emitter._finish(self)

    def _fresh_bytes(self) -> int:
        """Peak allocation of a call at the sizes of the plan: new outputs, and copies of inputs and outputs of a graph."""
        places = sum(memory.nbytes(leaf.type, self.plan.sizes) for leaf in self.plan.graph.inputs)
        copies = sum(self._bytes(v) for v in self.plan.outputs)
        return Emitter._fresh_bytes(self) + places + copies + self.packed

    def _function(self) -> list[str]:
        for helper in ("CallsBySize", "check_sizes"):
            self._use(helper)
        fixed, each = self._scopes()
        lines, space = list(self._offsets()), "None"
        if "Workspace" in self.helpers:
            fixed, space = [*fixed, "workspace = Workspace(device)"], "workspace"
            each = [*lines, *each]
        states = ["states = {} if states is None else states"] if self._state_types() else []
        updates = ", and states, which calls update" if states else ""
        return [
            'def bind(weights, states=None, device="cuda", graph=True):',
            f'    """Makes the program for given weights{updates}; it runs at every size. With `graph`, sizes that recur '
            'are recorded as CUDA graphs."""',
            *indented([*states, *fixed], 4), "", f"    def at({', '.join(self.shape_names.values())}):",
            *indented([*self._sizes(), *each], 8), "",
            f"        def launch({', '.join(self.inputs.values())}):", f'            """{signature(self.plan)}"""',
            *indented(self.each, 12), "", "        return launch", "",
            f"    return CallsBySize(at, {space}, device, graph)",
        ]  # fmt: skip

    def _sized_names(self) -> set[str]:
        return {*self.plan.sizes, "spaces", *(f"offset{i}" for i in range(len(self.slot_sizes))), *self.written}

    def _offsets(self) -> Iterator[str]:
        """Lines of the memory plan: where each slot begins, then the workspace."""
        end = "0"
        for i, texts in enumerate(self.slot_sizes):
            yield f"offset{i} = {end}"
            size = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
            end = f"offset{i} + ({size} + {ALIGNMENT - 1}) // {ALIGNMENT} * {ALIGNMENT}"
        yield f"spaces = workspace.take({end})"


def slots(
    spans: Sequence[tuple[str, int, int]], sizes: Mapping[str, int]
) -> tuple[dict[int, int], list[list[str]]]:  # fmt: skip
    """(span -> slot, texts of the bytes of each slot's values). Values that are live at a common step have different
    slots; the largest come first, each into the slot of the nearest size that is free. `spans`: (bytes as an expression,
    first step, last step)."""
    bytes_of = [concrete((parse(text, sizes),))[0] for text, _, _ in spans]
    slot_of: dict[int, int] = {}
    members: list[list[int]] = []
    for i in sorted(range(len(spans)), key=lambda i: (-bytes_of[i], spans[i][1], i)):
        _, first, last = spans[i]
        free = [s for s, own in enumerate(members) if all(spans[j][2] < first or spans[j][1] > last for j in own)]
        slot = min(free, key=lambda s: bytes_of[members[s][0]], default=len(members))
        if slot == len(members):
            members.append([])
        members[slot].append(i)
        slot_of[i] = slot
    return slot_of, [list(dict.fromkeys(spans[i][0] for i in own)) for own in members]


__all__ = ["SizedCudaEmitter", "slots"]
