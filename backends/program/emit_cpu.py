"""Emitter of Python source for a CPU plan.

The source runs without this package: NumPy, and Torch only where a kernel uses it.

    def bind(weights):         # or bind(weights, states)
        memory = workspace(...)
        v3 = place(memory, 0, (128, 768), np.float32)       buffers and views with fixed addresses are made once
        def run(x):
            np.add(x, w0, out=v3)  # add(x, y)               a call is straight-line code
            return v7.copy()
        return run

Outputs and results that a kernel allocates are made in `run`; everything else exists from `bind` on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...egraph.ir.ops import Type
from ...egraph.ir.tensor import Tensor, structural_digest
from ...extract.model.kernel import Template, contiguous, output_names
from ...extract.model.plan import Plan, Step, Value
from ..ir.source_text import dtype_text, identifier, imports_of, indented, literal, one_line, signature, title
from ..runtime.views import has_torch_view, torch_view
from ..user.templates import UserKernel
from . import memory_plan as memory
from .cpu_helpers import HELPERS, library_text
from .emitted_program import EmittedProgram
from .joined_calls import JoinedCalls

LARGE = 1 << 24  # bytes from which a weight is packed early, to limit peak memory


SHARED_BYTES = 1 << 16  # least size of what Torch's elementwise kernels compute with several threads
POOLED = ("contraction", "conv", "attention")  # template families whose NumPy kernels use BLAS threads
CONVERSIONS = {"numpy": "array", "torch": "tensor", "address": "pointer"}  # operand kind -> helper that converts to it


def is_torch(template: Template) -> bool:
    """Whether the code of `template` takes Torch tensors."""
    return operand_kind(template) == "torch"


def operand_kind(template: Template) -> str:
    """The form in which the code of `template` takes its operands, such as "numpy" or "torch"
    (`contract.Target.operands`)."""
    from ..registry import backends

    found = backends().get(template.backend)
    return "numpy" if found is None else found.operands


@dataclass
class ProgramEmitter:
    """Emitter of the source of programs for plans (lists of kernel calls) on the CPU; subclasses emit for other
    devices. Holds the state of one emission."""

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
    made_once: dict[str, str] = field(default_factory=dict)  # line of `run` -> the call whose addresses never change
    movable: set[str] = field(default_factory=set)  # lines of `run` that make arrays, views and addresses
    setups: set[tuple[str, str]] = field(default_factory=set)
    # result that a kernel allocates -> its variables
    loose: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    key_names: set[str] = field(default_factory=set)
    offered: dict[int, str] = field(default_factory=dict)  # output whose memory a call may give -> its variable
    taken: set[str] = field(default_factory=lambda: {"memory", "place", *HELPERS})

    alignment = memory.ALIGNMENT
    one_size = True  # whether the program runs at one size

    def emit(self) -> EmittedProgram:
        """Emit the plan's program; returns its source with what it requires: weights, states, memory."""
        plan = self.plan
        self.root = memory.roots(plan)
        self.makers = {v: s for s in plan.steps for v in s.outputs}
        self.fresh = {v for v, s in self.makers.items() if not s.is_view and not s.template.writes_out(s.call)}
        self.fresh_outputs = self._fresh_outputs()
        self.layout = memory.layout(plan, self.fresh | self.fresh_outputs, plan.sizes, alignment=self.alignment)
        self._reserve()
        self._states()
        self._run()
        return EmittedProgram(
            self._assemble(), self.weights, self._state_types(), self.layout, self._fresh_bytes(), self._row_major()
        )

    # ------------------------------------------------------------ names and where values come from
    def _reserve(self) -> None:
        from .helper_functions import all_helpers

        self.taken |= set(all_helpers())
        for step in self.plan.steps:
            if step.template.source is not None:
                python = isinstance(step.template, UserKernel) or self._kind(step.template) != "address"
                found = self.definitions if python else self.in_c
                found |= step.template.source(step.call)
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
            return self.ref(self.layout.pinned[v.id], "numpy")  # written directly to the state's memory
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

    # ------------------------------------------------------------ straight-line code
    def _setup(self, template: Template) -> None:
        self.setups |= {(template.backend, name) for name in template.setup}

    def _pack_large_weights(self) -> None:
        """Emit the packing of weights of at least `LARGE` bytes before other weights, largest first.

        While a weight is packed, it is in memory twice, so this order limits peak memory.
        """
        found = [
            (self._bytes(v), i, o, v)
            for i, step in enumerate(self.plan.steps)
            for o, v in step.inputs
            if o in step.template.prep
        ]
        for size, i, o, v in sorted(found, key=lambda f: (-f[0], f[1])):
            if size >= LARGE:
                self._prepared(self.plan.steps[i], o, v)

    def _run(self) -> None:
        self.dying: dict[int, list[int]] = {}
        for root in sorted(self.fresh & self.layout.last.keys()):
            self.dying.setdefault(self.layout.last[root], []).append(root)
        self._pack_large_weights()
        for i, step in enumerate(self.plan.steps):
            if not step.is_view:
                self._step(step)
                self._release(i)
        self._finish()

    def _step(self, step: Step) -> None:
        kind = self._kind(step.template)
        self._setup(step.template)
        names = {
            o: self._prepared(step, o, v) if o in step.template.prep else self.ref(v, kind) for o, v in step.inputs
        }
        if step.output in self.layout.scratch:
            names["scratch"] = self._scratch(step, kind)
        if step.doc:
            self.each.append(f"# {one_line(step.doc)}")
        if step.output in self.fresh:
            name = self._named(step.output, kind, identifier(f"v{step.output}", self.taken))
            self.each.append(f"{name} = {self._written(step, names)}")
        else:
            names |= dict(zip(output_names(len(step.outputs)), [self.ref(v, kind) for v in step.outputs]))
            text = self._written(step, names)
            if kind == "address" and not any(map(self._dynamic, (*step.outputs, *(v for _, v in step.inputs)))):
                name, _, rest = text.partition("(")
                call, text = text, f"{self._once(f'partial({name}, {rest}', f'{name}_')}()"
                self.made_once[text] = call  # its addresses never change
            self.each += STATEMENTS.split(text)

    def _scratch(self, step: Step, kind: str) -> str:
        """Variable of the step's scratch memory in the workspace, in an operand kind; emits its definition."""
        offset, size = self._scratch_room(step)
        self._use("workspace")
        name = self._once(f"{self._use('place')}(memory, {offset}, ({size},), np.uint8)", "scratch")
        return name if kind == "numpy" else self._once(f"{self._use(CONVERSIONS[kind])}({name})", f"{name}_{kind[0]}")

    def _scratch_room(self, step: Step) -> tuple[str, str]:
        """Offset and bytes of a step's scratch memory, as source."""
        offset, size = self.layout.scratch[step.output]
        return str(offset), str(size)

    def _bytes(self, value: int) -> int:
        """Bytes of a value at the sizes for which the plan was chosen."""
        return memory.nbytes(self.plan.values[value].type, self.plan.sizes)

    def _once(self, text: str, name: str) -> str:
        """Variable of an object that `bind` makes once; equal definitions share a variable."""
        if text not in self.shared:
            self.shared[text] = identifier(name, self.taken)
            self.once.append(f"{self.shared[text]} = {text}")
        return self.shared[text]

    def _written(self, step: Step, names: Mapping[str, str]) -> str:
        """Source of a step's call, with objects that are the same in each run hoisted to `bind`: reshapes of buffers at
        fixed addresses, arrays in scratch memory."""
        text = step.template.write(replace(step.call, names=names))
        values = {**dict(step.inputs), **dict(zip(output_names(len(step.outputs)), step.outputs))}
        operands = step.call.places
        fixed = {
            name for o, name in names.items()
            if o != "scratch" and o not in step.template.prep and not self._dynamic(values[o]) and operands[o].dense
        }  # fmt: skip

        def once(found: re.Match[str]) -> str:
            if found[1] not in fixed:
                return found[0]
            return self._once(found[0], f"{found[1]}_{(found[2] or found[3]).replace(', ', 'x')}")

        def part(found: re.Match[str]) -> str:
            return self._once(found[0], found[1]) if found[1] == names.get("scratch") else found[0]

        text = _ONCE.sub(lambda found: self._once(found[0], found[1]), text)
        return _PART.sub(part, _RESHAPE.sub(once, text))

    def _release(self, i: int) -> None:
        """Emit the deletion of results that kernels allocated, if step `i` was their last use."""
        for root in self.dying.pop(i, ()):
            keys = self.loose.pop(root)
            self.each.append(f"del {', '.join(self.names.pop(key) for key in keys)}")

    def _named(self, value: int, kind: str, name: str) -> str:
        self.names[value, kind] = name
        if self.root[value] in self.fresh:
            self.loose.setdefault(self.root[value], []).append((value, kind))
        return name

    def _finish(self) -> None:
        given: set[int] = set()
        results = []
        self.takes_tensors = self._takes_tensors()
        for v in self.plan.outputs:
            r = self.root[v]
            handed = r in self.fresh or r in self.fresh_outputs
            own = (handed and r not in given) or (self.reuse_outputs and self.plan.values[r].origin == "kernel")
            given.add(r)
            if own:
                results.append(self._tensor_or_array(v) if self.takes_tensors else self._result(v))
            else:
                name = self._result(v)
                results.append(identifier(f"result{v}", self.taken))
                self.each.append(f"{results[-1]} = {self._copy(name)}")
        self._update_states()
        self.each.append(f"return {', '.join(results)}{',' if len(results) == 1 else ''}")
        self.takes_tensors = self._takes_tensors()  # results have further uses of inputs
        if self.takes_tensors:
            self._offer_results()
            as_array = "{0} = {0} if {0}.__class__ is np.ndarray else {0}.numpy()"
            self.each[:0] = map(as_array.format, self.arrays)

    def _offer_results(self) -> None:
        """Make outputs that kernels write optional parameters of `run`, so that callers can give their memory.

        Only for outputs that `run` uses as addresses or tensors.
        """
        uses, lines = self._other_uses(), dict[str, list[int]]()
        for n, line in enumerate(self.each):
            if found := _ALLOCATED.match(line):
                lines.setdefault(found[1], []).append(n)
        for i, v in enumerate(self.plan.outputs):
            name = self.names.get((v, "numpy"), "")
            made = lines.pop(name, [])
            if v in self.fresh_outputs and len(made) == 1 and uses[name] == 1:
                self.each[made[0]] += f" if {name} is None else {name}"
                self.movable.add(self.each[made[0]])
                self.offered[i] = name

    def _tensor_or_array(self, value: int) -> str:
        """Source of an output that is returned without a copy: a tensor if the inputs are tensors and a kernel made or
        used this output as one, else an array."""
        home = self._home(value)
        name = self.ref(value, home)
        tensor = name if home == "torch" else self.names.get((value, "torch"))
        if tensor is None:
            return name
        array = f"{self._use('array')}({tensor})" if home == "torch" else name
        given = next(name for name in self.inputs.values() if name not in self.arrays)
        return f"{tensor} if {given}.__class__ is torch.Tensor else {array}"

    def _update_states(self) -> None:
        states = {v.name: v.id for v in self.plan.values if v.origin == "state"}
        pinned = {v: self.layout.pinned.get(self.root[v], -1) for v in self.plan.updates.values()}
        todo = [(n, v) for n, v in self.plan.updates.items() if states.get(n) not in (v, pinned[v])]
        saved = {}
        for _, v in todo:  # a new value that is a view of a state must be copied before that state changes
            if self.plan.values[self.root[v]].origin == "state" or self.root[v] in self.layout.pinned:
                saved[v] = identifier(f"new{v}", self.taken)
                self.each.append(f"{saved[v]} = {self._copy(self._result(v))}")
        for n, v in todo:
            self.each.append(self._assign(self.state_names[n], saved.get(v) or self._result(v)))

    def _result(self, value: int) -> str:
        """Variable of an output or a new state."""
        return self.ref(value, "numpy")

    def _copy(self, name: str) -> str:
        return f"np.array({name})"

    def _assign(self, place: str, name: str) -> str:
        return f"np.copyto({place}, {name})"

    def _row_major(self) -> frozenset[str]:
        """Keys of weights that must be row-major when read."""
        return frozenset(self.plain)

    def _fresh_bytes(self) -> int:
        changes: dict[int, int] = {}
        for i, step in enumerate(self.plan.steps):
            for v in step.outputs:
                if v in self.fresh | self.fresh_outputs:
                    size = self._bytes(v)
                    changes[i] = changes.get(i, 0) + size
                    after = self.layout.last.get(v, i) + 1
                    changes[after] = changes.get(after, 0) - size
        level = peak = 0
        for i in sorted(changes):
            level += changes[i]
            peak = max(peak, level)
        return peak

    # ------------------------------------------------------------ the file
    def _assemble(self) -> str:
        from .helper_functions import helper_source

        if self.in_c:
            self._join_calls()
            self.helpers |= {"c_library", "c_function", "c_kept"}
        function = self._function()
        if self.takes_tensors:
            offered = tuple(self.offered)
            said = [f"RESULTS = {offered}  # outputs whose memory a call may pass, after the inputs"] if offered else []
            function = ["TENSORS = True  # inputs may be tensors of the CPU, too", *said, "", *function]
        defined = [*helper_source(self.helpers, self.setups), *(text.strip() for text in self.definitions.values())]
        if self.in_c:
            blas = any(s.template.backend == "numpy" and s.template.family in POOLED for s in self.plan.steps)
            alone = not any(map(self._in_torch_threads, self.plan.steps))
            defined.append(library_text(self.in_c, threads=not blas, own_threads=alone))
        imports = imports_of("\n".join([*function, *defined]))
        lines = [
            f'"""{title(self.plan)}"""', "", "from __future__ import annotations", "", *imports, "",
            *(f"\n{d}\n" for d in defined), "", *function, "",
        ]  # fmt: skip
        return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines))

    def _in_torch_threads(self, step: Step) -> bool:
        """Whether a step may run in the threads of Torch's OpenMP library."""
        sizes = [self._bytes(v) for v in (*step.outputs, *(v for _, v in step.inputs))]
        kernel = not step.is_view and operand_kind(step.template) == "torch"
        return kernel and (step.template.family in POOLED or max(sizes) >= SHARED_BYTES)

    def _join_calls(self) -> None:
        """Replace consecutive calls of C kernels at fixed addresses by one call of a C function."""
        before = {*self.each}
        movable = self.movable if self.one_size else ()
        join = JoinedCalls(self.made_once, movable, self.in_c, lambda base: identifier(base, self.taken))
        self.each = join.joined(self.each)
        gone = before - {*self.each}
        if join.made:
            self.helpers |= {"table", "start_of", "starts_of"}
            single = {
                f"{n.removesuffix('()')} = partial({c.replace('(', ', ', 1)}"
                for n, c in self.made_once.items()
                if n in gone
            }
            self.once = [*(line for line in self.once if line not in single), *join.once]

    def _takes_tensors(self) -> bool:
        """Whether callers may pass arrays or tensors: `run` uses inputs as addresses or tensors. At one size it may
        use some of them as arrays (`arrays`), if these can be made of tensors by NumPy alone."""
        uses = self._other_uses()
        self.arrays = [name for name in self.inputs.values() if uses[name]]
        types = {self.inputs[v.name]: v.type.dtype for v in self.plan.values if v.origin == "input"}
        if self.one_size and all(types.get(name) != "bfloat16" for name in self.arrays):
            return len(self.arrays) < len(self.inputs)
        return bool(self.inputs) and not self.arrays

    def _other_uses(self) -> Counter[str]:
        """Number of uses of each variable in `run` other than as an address, as a tensor or as a result."""
        lines = "\n".join(line for line in self.each if not line.startswith(("# ", "return ")))
        uses = Counter(re.findall(r"\w+", lines))
        uses.subtract(_ADDRESSED.findall(lines))
        return uses

    def _parameters(self) -> list[str]:
        """Source of each parameter of the emitted function `run`: the inputs, then outputs whose memory a call may
        give."""
        return [*self.inputs.values(), *(f"{name}=None" for name in self.offered.values())]

    def _guarded(self) -> list[str]:
        """The decorator of `run` that silences NumPy's warnings, if there are NumPy kernels."""
        numpy = any(not s.is_view and self._kind(s.template) == "numpy" for s in self.plan.steps)
        return ['@np.errstate(all="ignore")'] if numpy else []

    def _function(self) -> list[str]:
        """Lines of the function `bind`."""
        parameters = "weights, states" if self._state_types() else "weights"
        fixed = [f"memory = workspace({self.layout.size})"] if "workspace" in self.helpers else []
        return [
            f"def bind({parameters}):",
            f'    """Makes the program for given weights{" and states, which run() updates" if "," in parameters else ""}."""',
            *indented([*fixed, *self.once], 4), "",
            *indented(self._guarded(), 4), f"    def run({', '.join(self._parameters())}):",
            f'        """{signature(self.plan)}"""', *indented(self.each, 8), "", "    return run",
        ]  # fmt: skip


_ONCE = re.compile(r"\b(hidden_scores)\([\w, *+]*\)")  # loop-invariant calls, hoisted to `bind`
_PART = re.compile(r"\bplace\(([A-Za-z_]\w*), [^,]+, \([^()]*\), [\w.]+\)")
_ADDRESSED = re.compile(r"= (?:argument|tensor)\((\w+)\)\n")
_ALLOCATED = re.compile(r"(\w+) = np\.empty\(")
STATEMENTS = re.compile(r"; |\n")
_RESHAPE = re.compile(r"\b([A-Za-z_]\w*)\.(?:view|reshape)\((?:\(([\w*, ]+?),?\)|([\w*, ]+?))\)")
