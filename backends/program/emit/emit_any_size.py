"""Emits Python source for CPU plans (choices of kernels) with free sizes: the emitted program runs at every size.

def bind(weights):
    w0 = weights['w']                                 size-independent objects are made once
    take = room()
    def at(x_shape):                                  called on the first call at a size
        n = x_shape[0]
        offsets, size = arranged(((256*n, 0, 1), …))  memory plan at this size
        memory = take(size)
        v3 = place(memory, offsets[0], (n, 64), np.float32)
        def run(x): …                                 straight-line code, as at fixed sizes
        return run
    return sized(at)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....egraph.composites.composite import expand
from ....egraph.ir.size_conditions import conditions
from ....egraph.ir.tensor import Tensor, make, rebuild, structural_digest, topological
from ....egraph.ops.ops import Type
from ....egraph.patterns.pattern import PatternCall, Var
from ....egraph.patterns.pattern_attrs import Name
from ....egraph.types import dims
from ....egraph.types.dims import Atom, Dim, DimExpr
from ....errors import UsageError
from ....extract.model.kernel import Call, Operand, Template, contiguous
from ....extract.model.plan import Plan, Step
from ....extract.model.sizes import bound_call, bound_terms, bound_value
from ...ir.source_text import RESERVED, dtype_text, identifier, indented, literal, signature
from .emit_cpu import ProgramEmitter

_WORD = re.compile(r"[A-Za-z_]\w*")
#: Variables of emitted programs.
_OWN = {
    "memory", "offsets", "size", "take", "at", "workspace", "spaces", "launch", "kernels", "inputs", "results", "warm",
}  # fmt: skip


# ---------------------------------------------------------------- names of sizes
def renamed_sizes(plan: Plan) -> Plan:
    """`plan` with those free sizes renamed whose names clash with keywords, builtins or names in emitted source."""
    from ..helpers.helper_functions import all_helpers

    taken = RESERVED | set(all_helpers()) | _OWN
    clash = sorted(n for n in plan.sizes if n in taken)
    if not clash:
        return plan
    used = taken | set(plan.sizes)
    names = {n: identifier(f"{n}_size", set(used)) for n in clash}
    atoms = {name: atom for v in plan.values for d in v.type.shape for name, atom in dims.symbols(d).items()}
    fresh: dict[str, Dim] = {
        n: DimExpr((((replace(atoms[n], name=new),), 1),)) if n in atoms else dims.dim(new) for n, new in names.items()
    }
    return substituted(plan, fresh, {names.get(n, n): s for n, s in plan.sizes.items()})


def substituted(plan: Plan, fresh: Mapping[str, Dim], sizes: Mapping[str, int]) -> Plan:
    """`plan` with each free size replaced by the expression `fresh[name]`.

    `sizes`: the new plan's sizes, with the values that the plan was chosen for.
    """

    def kind(t: Type) -> Type:
        return Type(bound_value(t.shape, fresh), t.dtype)

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor:
        return make(node.op, args, {k: bound_value(v, fresh) for k, v in node.attrs}, data=node.data)

    graph, roots = plan.graph, rebuild([*plan.graph.roots, *plan.graph.inputs], change)
    count = len(graph.roots)
    return replace(
        plan, graph=replace(graph.with_roots(roots[:count]), inputs=tuple(roots[count:])), sizes=dict(sizes),
        values=tuple(replace(v, type=kind(v.type), strides=bound_value(v.strides, fresh)) for v in plan.values),
        steps=tuple(replace(s, call=bound_call(s.call, fresh)) for s in plan.steps),
        weights=dict(zip(plan.weights, bound_terms(list(plan.weights.values()), fresh))),
    )  # fmt: skip


# ---------------------------------------------------------------- sizes from shapes
@dataclass(frozen=True)
class Source:
    """Where the free size `name` is read from: axis `axis` of input number `leaf` has extent scale * size + shift."""

    name: str
    leaf: int
    axis: int
    scale: int = 1
    shift: int = 0

    def of(self, shapes: Sequence[Sequence[int]]) -> int:
        """The value of the size, given the shapes of all inputs."""
        return (shapes[self.leaf][self.axis] - self.shift) // self.scale


def sources(shapes: Sequence[Sequence[Dim]], names: Sequence[str]) -> list[Source]:
    """For each free size (known only at a call), the input axis that it is read from: an axis whose extent is the size,
    else one whose extent is a linear expression in the size.

    `shapes`: of the inputs. `names`: the free sizes. Raises UsageError if no axis determines a size.
    """
    found: dict[str, Source] = {}
    for leaf, shape in enumerate(shapes):
        for axis, d in enumerate(shape):
            line = _line(d)
            if line is not None:
                name, scale, shift = line
                new = Source(name, leaf, axis, scale, shift)
                if name not in found or (scale, shift) == (1, 0) != (found[name].scale, found[name].shift):
                    found[name] = new
    missing = sorted(set(names) - set(found))
    if missing:
        raise UsageError(f"no axis of an input determines the size {missing[0]}", hint="give this size a fixed value")
    return [found[n] for n in names]


def _line(d: Dim) -> tuple[str, int, int] | None:
    """(name, scale, shift) of a dimension scale * name + shift; None for other dimensions."""
    if not isinstance(d, DimExpr):
        return None
    shift = sum(factor for atoms, factor in d.terms if not atoms)
    rest = [(atoms, factor) for atoms, factor in d.terms if atoms]
    if len(rest) != 1 or len(rest[0][0]) != 1 or rest[0][0][0].op != "size":
        return None
    return rest[0][0][0].name, rest[0][1], shift


def free(value: Any) -> bool:
    """Whether `value`, or any element of a nested tuple, is an expression in free sizes."""
    return any(map(free, value)) if isinstance(value, tuple) else isinstance(value, DimExpr)


# ---------------------------------------------------------------- the emitter
@dataclass
class SizedEmitter(ProgramEmitter):
    """Emitter of programs for CPU plans with free sizes, which run at every size."""

    one_size = False
    computed: dict[Tensor, str] = field(default_factory=dict)  # values computed from weights and sizes -> variable
    loads: dict[Tensor, bool] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)  # variables of arrays that `at` computes

    def _reserve(self) -> None:
        self.taken |= {*self.plan.sizes, "offsets", "size", "take", "at"}
        super()._reserve()
        self.spans = [(text, first, last) for text, first, last in self.layout.record.values()]
        self.slots = {int(v): i for i, v in enumerate(self.layout.record)}
        made = {s.output: i for i, s in enumerate(self.plan.steps)}
        self.scratches: dict[int, tuple[int, str]] = {}
        for step in self.plan.steps:
            if step.output in self.layout.scratch:
                assert step.template.scratch is not None
                size = str(step.template.scratch(step.call))
                self.scratches[step.output] = len(self.spans), size
                self.spans.append((size, made[step.output], made[step.output]))
        self.shape_names = {name: identifier(f"{name}_shape", self.taken) for name in self.inputs}

    def _offset(self, buffer: int) -> str:
        return f"offsets[{self.slots[buffer]}]"

    def _scratch_range(self, step: Step) -> tuple[str, str]:
        slot, size = self.scratches[step.output]
        return f"offsets[{slot}]", size

    # ------------------------------------------------------------ values made of weights and sizes
    def _sized(self, term: Tensor) -> bool:
        """Whether a term over weights depends on free sizes."""
        for node in topological([term]):
            if node not in self.loads:
                own = free(node.type.shape) or any(free(v) for _, v in node.attrs)
                self.loads[node] = own or any(self.loads[a] for a in node.args)
        return self.loads[term]

    def _definition(self, value: int, kind: str) -> str:
        if kind == self._home(value) and value in self.plan.weights and self._sized(self.plan.weights[value]):
            return self._weight(value)
        return super()._definition(value, kind)

    def _weight(self, value: int) -> str:
        term = self.plan.weights[value]
        return self._value(term) if self._sized(term) else super()._weight(value)

    def _value(self, term: Tensor) -> str:
        """Variable of the value of a term over weights and sizes, which `at` computes; emits its definition."""
        for node in [n for n in topological([term]) if self._sized(n)]:
            for a in node.args:
                if a not in self.computed and not self._sized(a):
                    self.computed[a] = self._loaded(a)
            if node not in self.computed:
                self.computed[node] = self._made(node)
        return self.computed[term]

    def _loaded(self, node: Tensor) -> str:
        """Variable of a size-independent array; emits its definition."""
        if node.op == "full":
            return self._line("w", self._filled(node))
        digest = structural_digest(node)
        if digest not in self.keys:
            base = str(node.attr("name")) if node.op == "param" else f"w{len(self.keys)}_base"
            self.keys[digest] = key = identifier(base, self.key_names)
            self.weights[key] = node
        self.plain.add(self.keys[digest])
        return self._line(self.keys[digest], self._stored(self.keys[digest]))

    def _made(self, node: Tensor) -> str:
        """Variable of an array that depends on sizes; emits its definition."""
        if node.op == "full":
            return self._line("w", self._filled(node))
        if node.op == "iota":
            return self._line("positions", self._positions(node))
        return self._computed(node)

    def _filled(self, node: Tensor) -> str:
        """Source of an array whose elements are all one value."""
        return f"np.full({literal(node.shape)}, {literal(node.attr('value'))}, {dtype_text(node.dtype)})"

    def _stored(self, key: str) -> str:
        """Source of a stored weight."""
        return f"weights[{key!r}]"

    def _positions(self, node: Tensor) -> str:
        """Source of an array of positions along an axis."""
        size, line = along_axis(node)
        text = f"np.arange({size}).astype({dtype_text(node.dtype)}).reshape({line})"
        return f"np.ascontiguousarray(np.broadcast_to({text}, {literal(node.shape)}))"

    def _line(self, base: str, text: str) -> str:
        if text in self.shared:
            return self.shared[text]
        name = self.shared[text] = identifier(base, self.taken)
        self.once.append(f"{name} = {text}")
        return name

    def _computed(self, node: Tensor) -> str:
        """Variable of an op's result; emits its computation by NumPy's kernel for the op, or by the kernels of its
        decomposition. Raises UsageError for an op without either."""
        from ...library.numpy import BACKEND

        found = self._kernel_of(node, BACKEND.templates)
        if found is None:
            return self._decomposed(node)
        template, call, name = found
        if template.family == "view" or not template.writes_out(call):
            text = template.write(call)
            self.once.append(f"{name} = np.asarray({text}, order='C')")  # ascontiguousarray gives scalars an axis
        else:
            self.once.append(f"{name} = np.empty({literal(node.shape)}, {dtype_text(node.dtype)})")
            self.once += template.write(replace(call, names={**call.names, "out": name})).split("; ")
        return name

    def _kernel_of(self, node: Tensor, templates: Iterable[Template]) -> tuple[Template, Call, str] | None:
        """(template, call on the operands' variables, name of a new variable for the result) of the first template that
        computes a node; None if there is none."""
        operands = [Operand(a.type, contiguous(a.shape)) for a in node.args]  # type: ignore[arg-type]
        for template in templates:
            call = plain_call(template, node, operands)
            if call is None or (
                template.applies is not None and not template.applies(bound_call(call, self.plan.sizes))
            ):
                continue
            self._setup(template)
            names = dict(zip(call.operands, [self.computed[a] for a in node.args]))
            name = identifier(f"w_{node.op}", self.taken)
            self.written.add(name)
            return template, replace(call, names=names), name
        return None

    def _decomposed(self, node: Tensor) -> str:
        """Variable of the value of a node's decomposition, or of a power with exponents of the full shape, for which
        NumPy's kernel needs no scratch memory. Raises UsageError for another atomic op."""
        if node.op == "pow" and (not node.rank or node.args[1].shape != node.shape):
            lines = [make("reshape", (a,), {"shape": a.shape or (1,)}) for a in node.args]
            wide = [make("broadcast_to", (a,), {"shape": node.shape or (1,)}) for a in lines]
            return self._value(make("reshape", (make("pow", wide, {}),), {"shape": node.shape}))
        if not node.entry.composite:
            raise UsageError(f"{node.op} of weights has no kernel at free sizes", hint="fix the sizes")
        return self._value(expand(node))

    # ------------------------------------------------------------ the file
    def _offer_results(self) -> None:
        """Do nothing: callers cannot give memory for outputs, because sizes are read from all arguments."""

    def _function(self) -> list[str]:
        states = bool(self._state_types())
        for helper in ("sized", "check_sizes"):
            self._use(helper)
        head = [f"def bind({'weights, states' if states else 'weights'}):",
                '    """Makes the program for given weights; it runs at every size."""']  # fmt: skip
        fixed, each = self._scopes()
        memory = []
        if "workspace" in self.helpers:
            fixed = [f"take = {self._use('room')}()", *fixed]
            rows = ", ".join(f"({size}, {first}, {last})" for size, first, last in self.spans)
            memory = [f"offsets, size = {self._use('arranged')}(({rows},))", "memory = take(size)"]
        return [
            *head, *indented(fixed, 4), "", f"    def at({', '.join(self.shape_names.values())}):",
            *indented([*self._sizes(), *memory, *each], 8), "",
            *indented(self._guarded(), 8), f"        def run({', '.join(self.inputs.values())}):",
            f'            """{signature(self.plan)}"""', *indented(self.each, 12), "", "        return run", "",
            "    return sized(at)",
        ]  # fmt: skip

    def _sizes(self) -> Iterator[str]:
        """Lines that read the sizes from shapes and check them."""
        shapes = [leaf.shape for leaf in self.plan.graph.inputs]
        names = list(self.shape_names.values())
        for s in sources(shapes, list(self.plan.sizes)):
            text = f"{names[s.leaf]}[{s.axis}]"
            text = text if not s.shift else f"({text} - {s.shift})"
            yield f"{s.name} = {text}{'' if s.scale == 1 else f' // {s.scale}'}"
        given = "(" + "".join(f"{n}, " for n in names) + ")"
        conditions = "".join(f"({text!r}, {text}), " for text in self._conditions())
        yield f"check_sizes({given}, {literal(tuple(map(tuple, shapes)))}, ({conditions}))"

    def _conditions(self) -> list[str]:
        """Python expressions over the sizes that a call must satisfy."""
        return conditions(self.plan.graph)

    def _sized_names(self) -> set[str]:
        """Variables that depend on sizes."""
        return {*self.plan.sizes, "memory", "offsets", *self.written}

    def _scopes(self) -> tuple[list[str], list[str]]:
        """(size-independent lines, for `bind`; lines that depend on sizes, for `at`)."""
        sized = self._sized_names()
        fixed: list[str] = []
        each: list[str] = []
        for line in self.once:
            target, _, text = line.partition(" = ")
            if sized.isdisjoint(_WORD.findall(line)):
                fixed.append(line)
                continue
            each.append(line)
            if text and target.isidentifier():
                sized.add(target)
        return fixed, each


def atoms_of(plan: Plan) -> dict[str, Atom]:
    """Free sizes that the shapes of a plan's inputs contain: name -> atom of size expressions, which has the size's
    range."""
    return {
        name: atom for leaf in plan.graph.inputs for d in leaf.shape for name, atom in dims.symbols(d).items()
    }  # fmt: skip


def plain_call(template: Template, node: Tensor, operands: Sequence[Operand]) -> Call | None:
    """The call of `template` on `operands` that computes `node`; None unless the template's pattern is the node's op
    alone, without conditions, weight preparation and scratch memory."""
    term = template.term
    if not isinstance(term, PatternCall) or term.op != node.op or template.prep or template.when or template.scratch:
        return None
    names = [a.name for a in term.args if isinstance(a, Var)]
    if len(set(names)) != len(node.args) or not all(isinstance(spelled, Name) for _, spelled in term.attrs):
        return None
    attrs = {spelled.name: node.attr(name) for name, spelled in term.attrs if isinstance(spelled, Name)}
    return Call(dict(zip(names, operands)), Operand(node.type, contiguous(node.shape)), attrs)  # type: ignore[arg-type]


def along_axis(node: Tensor) -> tuple[str, str]:
    """Python expressions for `node`, an iota (numbers 0, 1, … along one axis): (its size along that axis, the shape
    that is -1 at that axis and 1 at the others)."""
    axis = node.attr("axis")
    return literal(node.shape[axis]), literal(tuple(-1 if i == axis else 1 for i in range(node.rank)))


__all__ = ["SizedEmitter", "Source", "along_axis", "atoms_of", "plain_call", "renamed_sizes", "sources", "substituted"]
