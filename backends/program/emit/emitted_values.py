"""Writes the variables of a CPU program's values: buffers, views, weights, states, and their definitions.

The part of the emitter that does not depend on the calls: see emit_cpu.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ....egraph.ir.tensor import Tensor, structural_digest
from ....egraph.ops.ops import Type
from ....errors import UnusableKernelsError
from ....extract.model.kernel import Template, contiguous
from ....extract.model.library_kernel import LibraryKernel
from ....extract.model.plan import Plan, Step, Value
from ...ir.source_text import dtype_text, identifier, literal
from ...runtime.views import has_torch_view, torch_view
from ...user.templates import UserKernel
from ..helpers.cpu_helpers import HELPERS
from . import memory_plan as memory

CONVERSIONS = {"numpy": "array", "torch": "tensor", "address": "pointer"}  # operand kind -> helper that converts to it


def is_torch(template: Template) -> bool:
    """Whether the code of `template` takes Torch tensors."""
    return operand_kind(template) == "torch"


def operand_kind(template: Template) -> str:
    """The form in which the code of `template` takes its operands, such as "numpy" or "torch"
    (`contract.Target.operands`)."""
    from ...registry import find

    found = find(template.backend)
    return "numpy" if found is None else found.operands


def add_texts(known: dict[str, str], texts: Mapping[str, str], backend: str) -> None:
    """Add the source texts of a kernel of `backend` by the names of their functions. Raises UnusableKernelsError if a
    name is known with another text: kernels of one of the two would call the other's code."""
    for name, text in texts.items():
        if known.setdefault(name, text) != text:
            error = UnusableKernelsError(
                f"two kernels of a program define a function {name!r} differently, which is a bug of tensor_graphs",
                hint="please report it, with the model; or optimize with another backend",
            )
            error.backend = backend
            raise error


@dataclass
class EmittedValues:
    """State of the emission of one program, and the source of its values.

    `ref` gives the variable of a value. Its definition (buffer in the workspace, view, weight, conversion to another
    kind of operand) is emitted at first use: into `once`, the lines of `bind`, if its address is equal in all calls,
    else into `each`, the lines of `run`.
    """

    plan: Plan
    reuse_outputs: bool
    once: list[str] = field(default_factory=list)  # lines of `bind`
    each: list[str] = field(default_factory=list)  # lines of `run`
    names: dict[tuple[int, str], str] = field(default_factory=dict)  # (value, operand kind) -> variable
    prepared: dict[str, str] = field(default_factory=dict)
    packed: int = 0  # bytes of prepacked weights
    plain: set[str] = field(default_factory=set)
    shared: dict[str, str] = field(default_factory=dict)  # definition -> variable: one object per memory location
    weights: dict[str, Tensor] = field(default_factory=dict)
    keys: dict[bytes, str] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    definitions: dict[str, str] = field(default_factory=dict)  # generated kernels: name -> source
    in_c: dict[str, str] = field(default_factory=dict)  # generated C kernels: name -> source
    # functions of C libraries, each with those that stand before it in its library
    before_in_c: dict[str, list[str]] = field(default_factory=dict)
    made_once: dict[str, str] = field(default_factory=dict)  # line of `run` that calls C -> call at fixed addresses
    movable: set[str] = field(default_factory=set)  # lines of `run` that make arrays, views and addresses
    setups: set[tuple[str, str]] = field(default_factory=set)
    # result that a kernel allocates -> its variables
    loose: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    key_names: set[str] = field(default_factory=set)
    offered: dict[int, str] = field(default_factory=dict)  # output whose memory a call may give -> its variable
    taken: set[str] = field(default_factory=lambda: {"memory", "place", *HELPERS})

    alignment = memory.ALIGNMENT
    one_size = True  # whether the program runs at one size

    def _place_values(self) -> None:
        """Decide which values kernels allocate and where the others lie in the workspace."""
        plan = self.plan
        self.root = memory.roots(plan)
        self.makers = {v: s for s in plan.steps for v in s.outputs}
        self.fresh = {v for v, s in self.makers.items() if not s.is_view and not s.template.writes_out(s.call)}
        self.fresh_outputs = self._fresh_outputs()
        self.layout = memory.layout(plan, self.fresh | self.fresh_outputs, plan.sizes, alignment=self.alignment)

    # ------------------------------------------------------------ names and where values come from
    def _reserve(self) -> None:
        from ..helpers.helper_functions import host_helpers

        self.taken |= host_helpers().keys()
        for step in self.plan.steps:
            if step.template.source is not None:
                python = isinstance(step.template, UserKernel) or self._kind(step.template) != "address"
                found = self.definitions if python else self.in_c
                add_texts(found, texts := step.template.source(step.call), step.template.backend)
                if not python and type(step.template) is LibraryKernel:  # not one of a generated kernel
                    for at, name in enumerate(texts):
                        self.before_in_c.setdefault(name, [*texts][:at])
        self.taken |= self.definitions.keys() | self.in_c.keys()
        names = [str(leaf.attr("name")) for leaf in self.plan.graph.inputs]
        self.inputs = {name: identifier(name, self.taken) for name in names}
        for v in self.plan.values:
            if v.origin == "input":
                self.names[v.id, self._home(v.id)] = self.inputs[v.name]

    def _fresh_outputs(self) -> set[int]:
        """Ids of kernel results that are returned without a copy: each owns the memory of exactly one output and of no
        state update."""
        if self.reuse_outputs:
            return set()
        seen: dict[int, int] = {}
        for v in self.plan.outputs:
            seen[self.root[v]] = seen.get(self.root[v], 0) + 1
        updates = {self.root[v] for v in self.plan.updates.values()}
        return {
            r for r, n in seen.items()
            if n == 1 and self.plan.values[r].origin == "kernel" and r not in self.fresh and r not in updates
        }  # fmt: skip

    def _dynamic(self, value: int) -> bool:
        """Whether a value's address differs between calls, as of inputs and results that kernels allocate."""
        r = self.root[value]
        return self.plan.values[r].origin == "input" or r in self.fresh or r in self.fresh_outputs

    def _kind(self, template: Template) -> str:
        """Operand kind of a template's code."""
        return operand_kind(template)

    def _home(self, value: int) -> str:
        """Operand kind in which a value's first variable is: "torch" for results that Torch kernels allocate and their
        Torch views, else "numpy"."""
        r = self.root[value]
        if r not in self.fresh or not is_torch(self.makers[r].template):
            return "numpy"
        while value != r:
            if not has_torch_view(self.makers[value].template):
                return "numpy"
            ((_, value),) = self.makers[value].inputs
        return "torch"

    def _use(self, helper: str) -> str:
        self.helpers.add(helper)
        return helper

    def ref(self, value: int, kind: str) -> str:
        """Name of the variable that holds the value number `value` in the form `kind` ("numpy", "torch", …); emits its
        definition when first asked."""
        found = self.names.get((value, kind))
        if found is not None:
            return found
        text = self._definition(value, kind)
        if text.isidentifier():
            self.shared[text] = text
        if text in self.shared:
            self.names[value, kind] = self.shared[text]
            return self.shared[text]
        base = self._base_name(value)
        suffix = "" if (value, self._home(value)) not in self.names and kind == self._home(value) else f"_{kind[0]}"
        name = identifier(base + suffix, self.taken)
        line = f"{name} = {text}"
        if self._dynamic(value):
            self.each.append(line)
            self.movable.add(line)
        else:
            self.once.append(line)
        self._named(value, kind, name)
        if not self._dynamic(value):
            self.shared[text] = name
        return name

    def _base_name(self, value: int) -> str:
        term = self.plan.weights.get(value)
        if term is not None and term.op == "param":
            return str(term.attr("name"))
        return self.plan.values[value].name or (f"v{value}" if term is None else f"w{value}")

    def _definition(self, value: int, kind: str) -> str:
        v, home = self.plan.values[value], self._home(value)
        if v.origin == "view" and kind == home:
            return self._view(value, kind)
        if v.origin == "view" and kind != home and (text := self._view_of_same(value, kind)):
            return text
        if kind != home:
            source = self.ref(value, home)
            passing = kind == "address" and self._dynamic(value)  # what `run` refers to until it returns
            return f"{self._use('argument' if passing else CONVERSIONS[kind])}({source})"
        if v.origin == "weight":
            self.plain.add(self._key(value) if self.plan.weights[value].op != "full" else "")
            return self._weight(value)
        if v.origin == "kernel":
            return self._buffer(v)
        raise AssertionError(f"value {value} ({v.origin}) has no definition")

    def _view_of_same(self, value: int, kind: str) -> str:
        """Definition of a view of what a call gives or makes, from its operand in the same kind: the same address for a
        reshape, Torch's view. "" if there is none."""
        step = self.makers[value]
        ((operand, source),) = step.inputs
        if not self._dynamic(value):
            return ""
        if kind == "address":
            return self.ref(source, kind) if step.template.name == "view.reshape" else ""
        if kind == "torch" and has_torch_view(step.template):
            return torch_view(step.template, replace(step.call, names={operand: self.ref(source, kind)})) or ""
        return ""

    def _view(self, value: int, kind: str) -> str:
        step = self.makers[value]
        ((operand, source),) = step.inputs
        if kind == "torch":
            text = torch_view(step.template, replace(step.call, names={operand: self.ref(source, "torch")}))
            assert text is not None, step.template.name  # otherwise its kind would be "numpy"
            return text
        self._setup(step.template)
        return step.template.write(replace(step.call, names={operand: self.ref(source, "numpy")}))

    def _buffer(self, v: Value) -> str:
        shape, dtype = literal(v.type.shape), dtype_text(v.type.dtype)
        dense = v.strides == contiguous(v.type.shape)  # type: ignore[arg-type]
        if v.id in self.fresh_outputs:
            return (
                f"np.empty({shape}, {dtype})"
                if dense
                else f"{self._use('empty')}({shape}, {dtype}, {literal(v.strides)})"
            )
        if v.id in self.layout.pinned:
            return self.state_names[self.layout.pinned[v.id]]  # written directly to the state's memory
        offset = self._offset(self.layout.buffer[v.id])
        strides = "" if dense else f", {literal(v.strides)}"
        self._use("workspace")
        return f"{self._use('place')}(memory, {offset}, {shape}, {dtype}{strides})"

    def _offset(self, buffer: int) -> str:
        """The buffer's offset in the workspace, as source."""
        return str(self.layout.offsets[buffer])

    # ------------------------------------------------------------ weights and states
    def _key(self, value: int) -> str:
        term = self.plan.weights[value]
        digest = structural_digest(term)
        if digest not in self.keys:
            base = str(term.attr("name")) if term.op == "param" else f"w{value}"
            self.keys[digest] = key = identifier(base, self.key_names)
            self.weights[key] = term
        return self.keys[digest]

    def _weight(self, value: int) -> str:
        term = self.plan.weights[value]
        if term.op == "full":
            number = literal(term.attr("value"))
            return f"np.full({literal(term.shape)}, {number}, {dtype_text(term.dtype)})"
        return f"weights[{self._key(value)!r}]"

    def _prepared(self, step: Step, operand: str, value: int) -> str:
        raw, kind = self._weight(value), self._kind(step.template)
        if kind == "torch":
            raw = f"{self._use('tensor')}({raw})"
        self._setup(step.template)
        text = step.template.write_prep(operand, raw, replace(step.call, names={operand: raw}))
        if text not in self.prepared:
            name = identifier((self.plan.values[value].name or f"w{value}") + "_prepared", self.taken)
            self.once.append(f"{name} = {text}")
            self.prepared[text] = name
            self.packed += self._bytes(value)
        name = self.prepared[text]
        return self._once(f"{self._use(CONVERSIONS[kind])}({name})", f"{name}_a") if kind == "address" else name

    def _state_types(self) -> dict[str, Type]:
        written = {name: self.plan.values[v].type for name, v in self.plan.updates.items()}
        return {**{v.name: v.type for v in self.plan.values if v.origin == "state"}, **written}

    def _states(self) -> None:
        types = self._state_types()
        self.state_names = {name: identifier(name, self.taken) for name in types}
        self.once += [f"{name} = {self._state(key, types[key])}" for key, name in self.state_names.items()]
        for v in self.plan.values:
            if v.origin == "state":
                self.names[v.id, self._home(v.id)] = self.state_names[v.name]

    def _state(self, key: str, kind: Type) -> str:
        return f"states[{key!r}]"

    def _setup(self, template: Template) -> None:
        self.setups |= {(template.backend, name) for name in template.setup}

    def _bytes(self, value: int) -> int:
        """Bytes of a value at the sizes for which the plan was chosen."""
        return memory.nbytes(self.plan.values[value].type, self.plan.sizes)

    def _once(self, text: str, name: str) -> str:
        """Variable of an object that `bind` makes once; equal definitions share a variable."""
        if text not in self.shared:
            self.shared[text] = identifier(name, self.taken)
            self.once.append(f"{self.shared[text]} = {text}")
        return self.shared[text]

    def _named(self, value: int, kind: str, name: str) -> str:
        self.names[value, kind] = name
        if self.root[value] in self.fresh:
            self.loose.setdefault(self.root[value], []).append((value, kind))
        return name
