"""Emits Python source for a CPU plan (the chosen kernel calls).

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
from dataclasses import dataclass, replace

from ....extract.model.kernel import output_names
from ....extract.model.plan import Step
from ...ir.source_text import identifier, imports_of, indented, one_line, signature, title
from ..helpers.cpu_helpers import library_text
from .emitted_program import EmittedProgram
from .emitted_values import CONVERSIONS, EmittedValues, operand_kind
from .joined_calls import JoinedCalls

LARGE = 1 << 24  # bytes from which a weight is packed early, to limit peak memory


SHARED_BYTES = 1 << 16  # least size of what Torch's elementwise kernels compute with several threads
POOLED = ("contraction", "conv", "attention")  # template families whose NumPy kernels use BLAS threads


@dataclass
class ProgramEmitter(EmittedValues):
    """Emitter of the source of programs for plans (lists of kernel calls) on the CPU; subclasses emit for other
    devices. Holds the state of one emission."""

    whole: str = ""  # source of what makes a whole call in C (`_whole_call`)

    def emit(self) -> EmittedProgram:
        """Emit the plan's program; returns its source with the weights, states and memory that it needs."""
        self._place_values()
        self._reserve()
        self._states()
        self._run()
        return EmittedProgram(
            self._assemble(), self.weights, self._state_types(), self.layout, self._fresh_bytes(), self._row_major()
        )

    # ------------------------------------------------------------ straight-line code
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
        self.last_used: dict[int, list[int]] = {}
        for root in sorted(self.fresh & self.layout.last.keys()):
            self.last_used.setdefault(self.layout.last[root], []).append(root)
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
            made = [self._named(v, kind, identifier(f"v{v}", self.taken)) for v in step.outputs]
            self.each.append(f"{', '.join(made)} = {self._written(step, names)}")
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
        offset, size = self._scratch_range(step)
        self._use("workspace")
        name = self._once(f"{self._use('place')}(memory, {offset}, ({size},), np.uint8)", "scratch")
        return name if kind == "numpy" else self._once(f"{self._use(CONVERSIONS[kind])}({name})", f"{name}_{kind[0]}")

    def _scratch_range(self, step: Step) -> tuple[str, str]:
        """Offset and bytes of a step's scratch memory, as source."""
        offset, size = self.layout.scratch[step.output]
        return str(offset), str(size)

    def _written(self, step: Step, names: Mapping[str, str]) -> str:
        """Source of a step's call, with objects that are the same in each run hoisted to `bind`: reshapes of buffers at
        fixed addresses, arrays in scratch memory."""
        text = step.template.write(replace(step.call, names=names))
        values = {**dict(step.inputs), **dict(zip(output_names(len(step.outputs)), step.outputs))}
        operands = step.call.buffers
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
        for root in self.last_used.pop(i, ()):
            keys = self.loose.pop(root)
            self.each.append(f"del {', '.join(self.names.pop(key) for key in keys)}")

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
        pinned = self.layout.pinned
        todo = [(n, v) for n, v in self.plan.updates.items() if states.get(n) != v and pinned.get(self.root[v]) != n]
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
        from ..helpers.helper_functions import helper_source

        if self.in_c:
            self._join_calls()
            self.helpers |= {"c_library", "c_function", "c_kept", "c_beside"}
        function = self._function()
        if self.takes_tensors:
            offered = tuple(self.offered)
            constants = (
                [f"RESULTS = {offered}  # outputs whose memory a call may pass, after the inputs"] if offered else []
            )
            function = ["TENSORS = True  # inputs may be tensors of the CPU, too", *constants, "", *function]
        defined = [*helper_source(self.helpers, self.setups), *(text.strip() for text in self.definitions.values())]
        if self.in_c:
            blas = any(s.template.backend == "numpy" and s.template.family in POOLED for s in self.plan.steps)
            alone = not any(map(self._in_torch_threads, self.plan.steps))
            called = set(re.findall(r"\w+", "\n".join([*function, *defined])))
            threads = {"threads": not blas, "own_threads": alone}
            defined.append(library_text(self.in_c, called, **threads, before=self.before_in_c))
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
        join = JoinedCalls(
            self.made_once, movable, self.in_c, self.before_in_c.keys(), lambda base: identifier(base, self.taken)
        )
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
            self.whole = self._whole_call(join)

    def _whole_call(self, join: JoinedCalls) -> str:
        """Source of what makes a whole call: a C function, its table, and numbers of the parameters of `run` whose
        addresses are at the table's start. "" unless `run` does nothing but calling this function."""
        parameters = [*self.inputs.values(), *self.offered.values()]
        done = [line for line in self.each if not line.startswith("# ") and line not in self.movable]
        results = f"return {', '.join(self.offered.values())}{',' if len(self.offered) == 1 else ''}"
        if len(join.made) != 1 or not {*join.given} <= {*parameters}:
            return ""
        (call, function), start = join.made[0], f"{join.table}["
        if [x for x in done if not x.startswith(start)] != [f"{call}()", results] or len(done) > 3:
            return ""
        numbers = ", ".join(str(parameters.index(name)) for name in join.given)
        return f"{function}, {join.table}, ({numbers}{',' if len(join.given) == 1 else ''})"

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
            f'        """{signature(self.plan)}"""', *indented(self.each, 8), "",
            *([f"    run.whole = {self.whole}  # a call: C function, its table, parameters at the table's start"] * bool(self.whole)),
            "    return run",
        ]  # fmt: skip


_ONCE = re.compile(r"\b(hidden_scores)\([\w, *+]*\)")  # loop-invariant calls, hoisted to `bind`
_PART = re.compile(r"\bplace\(([A-Za-z_]\w*), [^,]+, \([^()]*\), [\w.]+\)")
_ADDRESSED = re.compile(r"= (?:argument|tensor)\((\w+)\)\n")
_ALLOCATED = re.compile(r"(\w+) = np\.empty\(")
STATEMENTS = re.compile(r"; |\n")
_RESHAPE = re.compile(r"\b([A-Za-z_]\w*)\.(?:view|reshape)\((?:\(([\w*, ]+?),?\)|([\w*, ]+?))\)")
