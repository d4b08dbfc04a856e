"""Emits Python source for GPU plans (choices of kernels) with free sizes: the emitted program runs at every size, and a
new size compiles nothing.

    def bind(weights, states=None, device="cuda", graph=True, launch_mode=""):
        w0 = uploaded(weights['w'], device)            size-independent objects are made once
        workspace = Workspace(device)
        def at(x_shape):                               called on the first call at a size
            T = x_shape[0]
            size0 = max(2048*T, 4096*T)                the memory plan, as expressions
            spaces = workspace.take(size0 + …)
            v3 = spaces[torch.float16].as_strided((T, 1024), (1024, 1), 0)
            def launch(x, v7):                         kernels take sizes as arguments
                reduction_sized_…[(T,)](x, w0, v3, T, num_warps=4)
                …
            return Calls(launch, …)                    see gpu_calls.py
        warm = [((1, 1024),), …]                       shapes at which all kernels are compiled
        return CallsBySize(at, workspace, device, graph, warm, launch_mode=launch_mode)

The memory plan assigns values to slots by liveness, once; the bytes of a slot are the largest of its values' at a size.

cuBLAS chooses an algorithm anew, which takes longer than several launches, at each number of rows that it meets. So
products of values in the workspace have a multiple of 64 rows beyond 64: their slots have room for further rows, which
hold any values and which nothing reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ....costdb.keys.device import GPU_KIND
from ....egraph.ir.tensor import Tensor
from ....egraph.ops.ops import Type
from ....egraph.types.dims import Dim, DimExpr, bounds, concrete, parse, volume
from ....egraph.types.dtypes import itemsize
from ....errors import ShapeError
from ....extract.model.kernel import Operand, contiguous
from ....extract.model.plan import Step, Value
from ...ir.source_text import identifier, indented, literal
from ...runtime.views import torch_view
from . import memory_plan as memory
from .emit_any_size import SizedEmitter, along_axis, atoms_of
from .emit_cpu import ProgramEmitter
from .emit_gpu import GpuProgramEmitter, torch_dtype
from .memory_plan import symbolic_bytes

ALIGNMENT = 256  # bytes: alignment of CUDA's allocator, sufficient for tensor maps
MOST_WARM = 24  # choices of sizes at which kernels are compiled ahead
ROWS = 64  # products of more rows get their number of rows rounded up to a multiple of this


@dataclass
class SizedCudaEmitter(GpuProgramEmitter, SizedEmitter):
    """Emitter of programs for GPU plans with free sizes.

    Sizes, weights and scopes (`bind`, `at`) are as in programs of the CPU (`SizedEmitter`), values are tensors.
    """

    # ------------------------------------------------------------ where values are
    def _reserve(self) -> None:
        self.taken |= {"workspace", "spaces", "kernels", "inputs", "results", "warm"}
        super()._reserve()
        self.row_counts: dict[Dim, str] = {}  # rows of products -> variable of the rounded number
        self.rounded: dict[int, str] = {}  # output of a product -> the variable of its rows
        larger: dict[int, str] = {}
        for step in self.plan.steps:
            rows = self._free_rows(step)
            if rows is None:
                continue
            if rows not in self.row_counts:
                self.row_counts[rows] = identifier("product_rows", self.taken)
            self.rounded[step.output] = name = self.row_counts[rows]
            for v in self._matrices(step).values():
                kind = self.plan.values[v].type
                row_bytes = symbolic_bytes(Type(kind.shape[-1:], kind.dtype))
                larger[self._span(v)] = f"{name}*{literal(row_bytes) if type(row_bytes) is int else f'({row_bytes})'}"
        self.slot_of, self.slot_sizes = slots(self.spans, self.plan.sizes, larger)

    # ------------------------------------------------------------ rows of products
    def _span(self, value: int) -> int:
        """Index in `spans` of the memory of a value in the workspace."""
        return self.slots[self.layout.buffer[self.root[value]]]

    def _matrices(self, step: Step) -> dict[str, int]:
        """Name -> value id of the result of a product, and of those operands that have as many rows as the result."""
        return {o: v for o, v in (*step.inputs, ("out", step.output)) if o in ("x", "r", "out")}

    def _free_rows(self, step: Step) -> Dim | None:
        """Number of rows of a product that can be rounded up, because its matrices are in the workspace, dense; else
        None."""
        from ...library.torch_cuda_products import rows_apart

        if step.is_view or not rows_apart(step.template):
            return None
        rows = volume(self.plan.values[step.output].type.shape[:-1])
        if not isinstance(rows, DimExpr) or bounds(rows)[1] <= ROWS:
            return None
        for number in self._matrices(step).values():
            value, root = self.plan.values[number], self.plan.values[self.root[number]]
            dense = all(v.strides == contiguous(v.type.shape) for v in (value, root))  # type: ignore[arg-type]
            whole = symbolic_bytes(value.type) == symbolic_bytes(root.type)
            if root.id not in self.layout.buffer or not dense or not whole or volume(value.type.shape[:-1]) != rows:
                return None
        return rows

    def _written(self, step: Step, names: Mapping[str, str]) -> str:
        rows = self.rounded.get(step.output)
        if rows is None:
            return super()._written(step, names)
        found, places = dict(names), dict(step.call.buffers)
        for o, v in self._matrices(step).items():
            kind = self.plan.values[v].type
            width = kind.shape[-1]
            start = self._start(self._span(v), kind.dtype)
            text = f"spaces[{torch_dtype(kind.dtype)}].as_strided(({rows}, {literal(width)}), ({literal(width)}, 1), {start})"
            found[o] = self._once(text, f"v{v}_rows")
            shape = (volume(kind.shape[:-1]), width)
            places[o] = Operand(Type(shape, kind.dtype), contiguous(shape))  # type: ignore[arg-type]
        call = replace(step.call, operands={o: places[o] for o in step.call.operands}, output=places["out"])
        return super()._written(replace(step, call=call), found)

    def _definition(self, value: int, kind: str) -> str:
        return SizedEmitter._definition(self, value, kind)

    def _buffer(self, v: Value) -> str:
        if v.id in self.layout.pinned:
            return self.state_names[self.layout.pinned[v.id]]
        return self._space(self.slots[self.layout.buffer[v.id]], v.type.shape, v.strides, v.type.dtype)

    def _space(self, span: int, shape: Sequence[Dim], strides: Sequence[Dim], dtype: str) -> str:
        """Source of a tensor in the workspace, at the slot of `span`."""
        self._use("Workspace")
        start = self._start(span, dtype)
        return f"spaces[{torch_dtype(dtype)}].as_strided({literal(tuple(shape))}, {literal(tuple(strides))}, {start})"

    def _start(self, span: int, dtype: str) -> str:
        """Source of the offset of the slot of `span` in the workspace, in elements."""
        start = f"offset{self.slot_of[span]}"
        return start if itemsize(dtype) == 1 else f"{start} // {itemsize(dtype)}"

    def _scratch(self, step: Step, kind: str) -> str:
        span, _ = self.scratches[step.output]
        assert step.template.scratch is not None
        return self._once(self._space(span, (step.template.scratch(step.call),), (1,), "uint8"), "scratch")

    # ------------------------------------------------------------ weights
    def _weight(self, value: int) -> str:
        term = self.plan.weights[value]
        return self._value(term) if self._sized(term) else GpuProgramEmitter._weight(self, value)

    def _filled(self, node: Tensor) -> str:
        value, dtype = literal(node.attr("value")), torch_dtype(node.dtype)
        return f"torch.full({literal(node.shape)}, {value}, dtype={dtype}, device=device)"

    def _stored(self, key: str) -> str:
        return f"{self._use('uploaded')}(weights[{key!r}], device)"

    def _positions(self, node: Tensor) -> str:
        size, line = along_axis(node)
        text = f"torch.arange({size}, device=device).to({torch_dtype(node.dtype)}).reshape({line})"
        return f"{text}.expand({literal(node.shape)}).contiguous()"

    def _computed(self, node: Tensor) -> str:
        from ...library.torch_cuda import BACKEND

        found = self._kernel_of(node, BACKEND.templates)
        if found is None:
            return self._decomposed(node)
        template, call, name = found
        if template.family == "view" or not template.writes_out(call):
            text = (torch_view(template, call) if template.family == "view" else None) or template.write(call)
            self.once.append(f"{name} = ({text}).contiguous()")
        else:
            shape, dtype = literal(node.shape), torch_dtype(node.dtype)
            self.once.append(f"{name} = torch.empty({shape}, dtype={dtype}, device=device)")
            self.once += template.write(replace(call, names={**call.names, "out": name})).split("; ")
        return name

    # ------------------------------------------------------------ results, the file
    def _fresh_bytes(self) -> int:
        """Peak bytes that a call allocates at the sizes for which the plan was chosen: new outputs, and the copies of
        inputs and outputs of a CUDA graph."""
        places = sum(memory.nbytes(leaf.type, self.plan.sizes) for leaf in self.plan.graph.inputs)
        copies = sum(self._bytes(v) for v in self.plan.outputs)
        return ProgramEmitter._fresh_bytes(self) + places + copies + self.packed

    def _function(self) -> list[str]:
        for helper in ("CallsBySize", "check_sizes"):
            self._use(helper)
        if any("SizedCudaKernel(" in text for text in self.definitions.values()):
            self._use("SizedCudaKernel")
        fixed, each = self._scopes()
        space = "None"
        if "Workspace" in self.helpers:
            fixed, space = [*fixed, "workspace = Workspace(device)"], "workspace"
            each = [*self._offsets(), *each]
        states = ["states = {} if states is None else states"] if self._state_types() else []
        updates = ", and states, which calls update" if states else ""
        launch, calls = self._calls()
        if "Variants" in self.helpers:
            fixed = [*fixed, "variants = Variants()"]
        options = [
            *(["states=states"] if states else []),
            *(["variants=variants"] if "Variants" in self.helpers else []),
        ]
        return [
            f'def bind(weights, states=None, device="{GPU_KIND}", graph=True, launch_mode=""):',
            f'    """Makes the program for given weights{updates}; it runs at every size. With `graph`, launches at sizes '
            'that recur are recorded; see `Calls` for `launch_mode`."""',
            *indented([*states, *fixed], 4), "", f"    def at({', '.join(self.shape_names.values())}):",
            *indented([*self._sizes(), *each, *launch], 8), f"        return {calls})", "",
            f"    warm = [{', '.join(map(literal, self._warm()))}]",
            f"    return CallsBySize(at, {space}, device, graph, warm, {''.join(f'{o}, ' for o in options)}launch_mode=launch_mode)",
        ]  # fmt: skip

    def _variants(self) -> str:
        """Text of the arguments of `Launches`: the `Variants` object that records the Triton kernels of all sizes; ""
        without Triton kernels."""
        if not any("@triton" in self.definitions.get(name, "") for name in self.own):
            return ""
        return self._use("Variants").lower()

    def _warm(self) -> list[tuple[tuple[int, ...], ...]]:
        """Choices of input shapes that together run each form of each kernel: at the least sizes of the form, and at
        sizes one larger, where pointers may have a smaller alignment. At most `MOST_WARM`."""
        atoms, graph = atoms_of(self.plan), self.plan.graph
        cuts = {n: {atom.min, atom.min + 1} for n, atom in atoms.items()}
        for step in self.plan.steps:
            for form_bounds in step.template.bounds_of(step.call):
                for n, (least, most) in form_bounds.items():
                    cuts[n] |= {least, least + 1, most + 1, most + 2}
        kept = [sorted(s for s in cuts[n] if atom.min <= s <= atom.max) for n, atom in atoms.items()]
        found = []
        for sizes in product(*kept):
            try:
                found.append(tuple(concrete(x.shape) for x in graph.bind(dict(zip(atoms, sizes))).inputs))
            except ShapeError:
                continue
            if len(found) == MOST_WARM:
                break
        return found

    def _conditions(self) -> list[str]:
        """Python expressions over the sizes that a call must satisfy: those of CPU programs, and those of generated
        kernels, such as that 32 bits hold their addresses."""
        found = dict.fromkeys(SizedEmitter._conditions(self))
        for step in self.plan.steps:
            found |= dict.fromkeys(step.template.conditions_of(step.call))
        return list(found)

    def _sized_names(self) -> set[str]:
        offsets = (f"offset{i}" for i in range(len(self.slot_sizes)))
        return {*self.plan.sizes, "spaces", *offsets, *self.row_counts.values(), *self.written}

    def _offsets(self) -> Iterator[str]:
        """Lines of the memory plan: rounded numbers of rows, the offset of each slot, then the workspace."""
        for rows, name in self.row_counts.items():
            text = f"{rows}" if f"{rows}".isidentifier() else f"({rows})"
            yield f"{name} = {text} + -{text} % {ROWS} * min(1, {text} // {ROWS + 1})"
        end = "0"
        for i, texts in enumerate(self.slot_sizes):
            yield f"offset{i} = {end}"
            size = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
            end = f"offset{i} + ({size} + {ALIGNMENT - 1}) // {ALIGNMENT} * {ALIGNMENT}"
        yield f"spaces = workspace.take({end})"


def slots(
    spans: Sequence[tuple[str, int, int]], sizes: Mapping[str, int], larger: Mapping[int, str] | None = None
) -> tuple[dict[int, int], list[list[str]]]:  # fmt: skip
    """Assign values to slots (parts) of the workspace; returns (number of a value -> slot, Python expressions of the
    bytes of each slot's values).

    Values that are live at a common step have different slots. The largest values are placed first, each into the free
    slot of the nearest size. `spans`: for each value (bytes as an expression, first step, last step). `sizes`: the
    sizes at which bytes are compared. `larger`: expressions of the bytes of those values that need more.
    """
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
    texts = [spans[i][0] if larger is None else larger.get(i, spans[i][0]) for i in range(len(spans))]
    return slot_of, [list(dict.fromkeys(texts[i] for i in own)) for own in members]


__all__ = ["SizedCudaEmitter", "slots"]
