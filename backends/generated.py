"""Generated kernels: templates for fusion groups of the e-graph (extract/regions.py), lowered through the kernel IR;
shared by all emitters.

A fusion group's term becomes a template whose code, scratch memory, schedules and source follow from the term and from
the operands' layouts. An `Emitter` tiles a kernel of the IR and writes its source; everything else is here.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from math import prod
from typing import Any, Protocol

from ..egraph.dims import concrete
from ..egraph.forks import Lock
from ..egraph.graph import Tensor, topological
from ..egraph.memo import memo
from ..extract.kernel import MAX_COMBINATIONS, SEPARATOR, Call, Operand, Template, identify, output_names
from ..extract.work import graph_flops
from .images import channels_last, laid_out, prepared
from .index import Axis
from .kir import PROBE, Buffer, Kernel, Unfusable, if_fusable, walk
from .kir_loops import rolled
from .kir_lower import kernel_of
from .kir_scale import base_two, beside_softmax, scaled_early
from .kir_split import COUNTERS, places, split
from .precision import IEEE, Precision
from .tiling import Shape, repeated, shape_of

COUNTING = f'''_counters = {{}}


def counters(device):
    """Counters of the programs that have stored their part of a tile: zero between kernels."""
    if device not in _counters:
        _counters[device] = torch.zeros({COUNTERS}, dtype=torch.int32, device=device)
    return _counters[device]'''
CARRYING = '''def carried(x, out):
    """What a kernel that writes some places of out leaves there otherwise: x, which may be out."""
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)'''
CODE_IDENTITY = "generated.template_of.<locals>.<lambda>"  # part of the key of every stored measurement: do not change
FORMS = ("roles", "boxes")  # schedule forms that not every kernel with the same loops supports
WRITTEN_OUT = 256  # nodes up to which a term is spelled as one expression
NESTED = 24  # nesting depth of expressions in larger ones
READ, LOOKS = 2000, 8  # limit of lowered nodes over all layouts; layouts that are lowered in any case
Schedule = dict[str, int]


class Launch(Protocol):
    """One kernel launch: the name that `source` defines, and the statement that launches the kernel."""

    @property
    def name(self) -> str:
        """Name of the kernel."""
        ...

    @property
    def source(self) -> str:
        """Source of the kernel's definition."""
        ...

    def call(self, names: Mapping[str, str]) -> str:
        """The launch statement; `names` maps buffers to variables."""
        ...


class Emitter(Protocol):
    """Converts kernels of the IR to source.

    `version` must be raised when the same kernel and schedule give another text; `setup` names the helpers that every
    kernel needs, `needs` the Python modules.
    """

    name: str
    version: str
    setup: tuple[str, ...]
    needs: tuple[str, ...]

    def space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Schedule]:
        """Candidate schedules, best guess first. `splits`: whether the longest reduction may be split."""
        ...

    def launches(self, found: Lowered, schedule: Mapping[str, int], name: str) -> Sequence[Launch]:
        """The launches of a schedule, in order. Unfusable if the kernel cannot be emitted."""
        ...


def spelled(terms: Sequence[Tensor]) -> str:
    """Terms in the pattern language, with inputs as variables. In large terms, shared or deeply nested nodes are
    named."""
    order = topological(terms)
    sizes: dict[Tensor, int] = {}
    for t in order:
        sizes[t] = 1 + sum(sizes[a] for a in t.args)
    large = max(sizes[t] for t in terms) > WRITTEN_OUT
    uses = Counter(a for t in order for a in t.args)
    texts: dict[Tensor, str] = {}
    depth: dict[Tensor, int] = {}
    defined: list[str] = []
    for t in order:
        texts[t], depth[t] = _spelled(t, texts), 1 + max((depth[a] for a in t.args), default=0)
        if large and t.args and (uses[t] > 1 or depth[t] > NESTED):
            name = f"v{len(defined)}"
            defined.append(f"{name} := {texts[t]}")
            texts[t], depth[t] = name, 0
    return SEPARATOR.join([*defined, *(texts[t] for t in terms)])


def _spelled(term: Tensor, texts: Mapping[Tensor, str]) -> str:
    if term.op == "input":
        return str(term.attr("name"))
    if term.op == "full" and term.type.rank == 0:
        return repr(term.attr("value"))
    attrs = [f"{k}={v!r}" for k, v in term.attrs]
    name = f"{term.op}_" if term.op in ("and", "or", "not") else term.op
    return f"{name}({', '.join([*(texts[a] for a in term.args), *attrs])})"


@dataclass(frozen=True)
class Lowered:
    """A call's kernel with its shape and its candidate schedules."""

    kernel: Kernel
    shape: Shape
    space: tuple[Schedule, ...]
    made: dict[str, Sequence[Launch]] = field(default_factory=dict, compare=False, repr=False)  # by name
    cut: dict[int, tuple[Kernel, Kernel]] = field(default_factory=dict, compare=False, repr=False)  # by parts

    @cached_property
    def cuts(self) -> bool:
        """Whether the longest reduction can be split."""
        return _can_split(self.kernel, self.shape)

    def halves(self, parts: int) -> tuple[Kernel, Kernel]:
        """The kernel with its longest reduction split: (kernel of partial results, combining kernel)."""
        if parts not in self.cut:
            self.cut[parts] = split(self.kernel, split_axis(self.shape), parts)
        return self.cut[parts]


@dataclass(frozen=True, eq=False)
class Generated(Template):
    """Template of a kernel generated for one term, or for several over the same inputs (multi-output fusion).

    Everything else follows from the terms and the operands' layouts.
    """

    root: Tensor = field(default=None)  # type: ignore[assignment]
    others: tuple[Tensor, ...] = ()  # terms of further outputs
    precision: Precision = IEEE  # of float32 products
    emitter: Emitter = field(default=None)  # type: ignore[assignment]
    lowered: dict[Any, Lowered | bytes | None] = field(default_factory=dict)

    @property
    def roots(self) -> list[Tensor]:
        """The terms of all outputs."""
        return [self.root, *self.others]

    @cached_property
    def bases(self) -> dict[str, str]:
        """Outputs that are only partly written (scatter) -> operands that hold the rest."""
        outputs = zip(output_names(len(self.roots)), self.roots)
        return {name: str(t.args[0].attr("name")) for name, t in outputs if _partial(t)}

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The terms' inputs, in order of first use."""
        return tuple(str(t.attr("name")) for t in topological(self.roots) if t.op == "input")

    @cached_property
    def combinations(self) -> int:
        """Number of operand-layout combinations to try: lowering hundreds of operations takes a tenth of a second."""
        return min(MAX_COMBINATIONS, max(LOOKS, READ // len(topological(self.roots))))

    @cached_property
    def work(self) -> float:
        """Flops of the terms."""
        return graph_flops(self.roots)

    def written(self, call: Call) -> Call:
        """The call with its output in this template's layout."""
        return call if self.layout is None else replace(call, output=Operand(call.output.type, self.layout(call)))

    def effort(self, call: Call) -> float:
        """Flops of a call: those of the terms, plus recomputation due to the schedule."""
        found = self.lower(call)
        if found is None:
            return self.work
        schedule = scheduled(found, call)
        rows, columns = (schedule.get(d) or prod(schedule.get(f"{k}{d}", 1) for k in "tvu") for d in "mn")
        columns = found.shape.n if schedule.get("walk") else columns
        return self.work + repeated(found.kernel, found.shape, rows, columns)

    def size(self, call: Call) -> int:
        """Number of expressions in a call's kernel."""
        found = self.lower(call)
        return len(found.kernel.exprs) if found is not None else 0

    def ways(self, call: Call) -> tuple[str, ...]:
        """Names of the kernel IR transformations that a call's kernel uses."""
        found = self.lower(call)
        if found is None:
            return ()
        ways = {*found.kernel.builder.ways}
        ways |= {"ROLL" for e in found.kernel.reductions if rolled(e, e.axis) is not None}
        ways |= {"SPLIT"} if scheduled(found, call).get("split", 1) > 1 else set()
        return tuple(sorted(ways))

    def alike(self, call: Call) -> Hashable | None:
        """Key of calls whose best schedules are likely the same, whatever precedes and follows their loops; None
        without a kernel.

        The key holds the emitter, the numbers of rows, columns and reduction elements, the innermost axes of images,
        and the possible forms of schedules.
        """
        found = self.lower(call)
        if found is None:
            return None
        s = found.shape
        batch, inner = prod(a.size for a in s.batch), tuple(a.size for a in s.inner)
        rights = len({d.right for d in s.dots.values()})
        images = [o for o in call.places.values() if o.type.rank > 2]
        lie = frozenset(
            (o.type.rank, min(range(o.type.rank), key=lambda i: (o.strides[i] == 0, o.strides[i]))) for o in images
        )
        forms = frozenset(name for one in found.space for name in FORMS if one.get(name))
        own = self.emitter.name, self.precision
        return *own, s.kind, s.m, s.n, batch, inner, s.walks, rights, bool(self.prep), lie, forms

    def lower(self, call: Call) -> Lowered | None:
        """The lowered kernel of a call, None if there is none. Cached by layout."""
        key = lying(call)
        if key not in self.lowered:
            self.lowered[key] = self._lower(call)
        found = self.lowered[key]
        if isinstance(found, bytes):  # from another process (lower_worker.py)
            found = self.lowered[key] = Lowered(*pickle.loads(found))
        return found

    def _lower(self, call: Call) -> Lowered | None:
        buffers = {n: Buffer(o.type.dtype, concrete(o.type.shape), o.strides) for n, o in call.places.items()}
        for name in self.prep:
            buffers[name] = laid_out(buffers[name], call)
        deep(sum(len(t.args) > 0 for t in topological(self.roots)))
        read = _read(tuple(self.roots), tuple(buffers.items()))
        if read is None:
            return None
        kernel, shape, splits = read
        try:
            found = Lowered(kernel, shape, tuple(self._space(kernel, shape, splits)))
            if not found.space:
                return None
            self.emitter.launches(found, found.space[0], PROBE)
        except (Unfusable, RecursionError):  # deeper than `deep` allows
            return None
        return found

    def _space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Schedule]:
        if self.precision is IEEE:
            return self.emitter.space(kernel, shape, splits)
        rounding = getattr(self.emitter, "rounding", None)
        worth = rounds(kernel, shape) and shape.m >= self.precision.rows
        return rounding(kernel, shape, splits, self.precision) if rounding and worth else ()


def lying(call: Call) -> Hashable:
    """Cache key of a call's layout: strides and dtypes of operands and outputs."""
    places = (*call.operands.values(), *call.outputs)
    return len(call.outputs), tuple([(o.strides, o.type.dtype) for o in places])


def rounds(kernel: Kernel, shape: Shape) -> bool:
    """Whether a kernel has float32 matrix products, whose operands tensor cores would round."""
    floats = {b.dtype for b in kernel.buffers.values() if b.dtype in ("float16", "bfloat16", "float32", "float64")}
    return floats == {"float32"} and bool(shape.dots) and bool(shape.rows)


FRAMES = 24  # Python stack frames per nested operation during lowering and emission
# limit of stack frames: it holds for the whole process, and about 80 000 calls from C overflow a stack of 8 MiB
DEEPEST = 40_000


def deep(operations: int) -> None:
    """Allow recursion as deep as a term of so many operations may need, within bounds: Python's own limit is meant for smaller
    ones, but keeps a file that is nested too deeply from ending the process."""
    with _deepening:  # the limit is the process' own: another thread may be raising it
        sys.setrecursionlimit(max(sys.getrecursionlimit(), min(1000 + FRAMES * operations, DEEPEST)))


_deepening = Lock()


def across(found: Lowered) -> bool:
    """Whether a right operand of a product is not contiguous along K."""
    return any(
        e.op == "load" and dot.axis in e.axes and e.value[1].coefficient(dot.axis) != 1
        for dot, d in found.shape.dots.items()
        for side in d.right
        for e in walk([side])
    )


@memo(4096)
def _read(
    roots: tuple[Tensor, ...], buffers: tuple[tuple[str, Buffer], ...]
) -> tuple[Kernel, Shape, bool] | None:  # fmt: skip
    """(kernel, shape, whether the longest reduction can be split) of terms with the given operand layouts; None if
    there is no kernel.

    The same for every emitter and precision.
    """
    leaves = {t: str(t.attr("name")) for t in topological(roots) if t.op == "input"}
    try:
        kernel = scaled_early(base_two(beside_softmax(kernel_of(roots, leaves, dict(buffers)))))
        shape = shape_of(kernel, products="PIECES" not in kernel.builder.ways)
        return kernel, shape, _can_split(kernel, shape)
    except (Unfusable, RecursionError):  # deeper than `deep` allows
        return None


def scheduled(found: Lowered, call: Call) -> Schedule:
    """The schedule of a call: the best guess if none was chosen."""
    return dict(call.schedule) or found.space[0]


def launches(template: Generated, call: Call) -> Sequence[Launch]:
    """The launches of a scheduled call, in order."""
    found = template.lower(call)
    assert found is not None
    schedule = scheduled(found, call)
    key = repr((template.identity, call.operands, *call.outputs, sorted(schedule.items())))
    name = f"{found.shape.kind}_{blake2b(key.encode(), digest_size=5).hexdigest()}"
    if name not in found.made:  # source, code and scratch all ask
        found.made[name] = template.emitter.launches(found, schedule, name)
    return found.made[name]


def split_axis(shape: Shape) -> Axis:
    """The longest reduction axis that is not nested in another reduction."""
    return max(shape.outer, key=lambda a: a.size)


def _can_split(kernel: Kernel, shape: Shape) -> bool:
    """Whether the longest reduction can be split."""
    if not shape.outer or (axis := split_axis(shape)).size % 2:
        return False
    return if_fusable(split, kernel, axis, 2) is not None


def _code(template: Generated, call: Call) -> str:
    """The statements of a call: copies for partly written outputs, and the launches."""
    names = dict(call.names)
    found = template.lower(call)
    assert found is not None
    parts = scheduled(found, call).get("split", 1)
    if parts > 1:
        first, _ = found.halves(parts)
        for name, (start, size) in places(first.buffers)[0].items():
            names[name] = f"{names['scratch']}[{start}:{start + size}].view(torch.float32)"
        names["counters"] = f"counters({names['out']}.device)"
    pairs = [(names[base], names[output]) for output, base in template.bases.items()]
    kept = [f"carried({base}, {output})" for base, output in pairs if base != output]
    return "\n".join([*kept, *(launch.call(names) for launch in launches(template, call))])


def _partial(t: Tensor) -> bool:
    """Whether a term scatters values into a tensor in memory."""
    return t.op == "scatter_elements" and t.args[0].op == "input"


def _definitions(template: Generated, call: Call) -> dict[str, str]:
    """The definitions of a call's launches and of what they require: name -> source."""
    found: dict[str, str] = {}
    for launch in launches(template, call):
        found |= getattr(launch, "definitions", {launch.name: launch.source})
    return found


def _scratch(template: Generated, call: Call) -> int:
    """Bytes of scratch memory of a call: partial results of a split reduction."""
    found = template.lower(call)
    parts = 1 if found is None else scheduled(found, call).get("split", 1)
    if found is None or parts == 1:
        return 0
    return places(found.halves(parts)[0].buffers)[1]


def _space(template: Generated, call: Call) -> Sequence[Mapping[str, int]]:
    """Candidate schedules of a call."""
    found = template.lower(call)
    return found.space if found is not None else ()


def _fits(made: Sequence[Generated], call: Call) -> bool:
    """Whether a call's schedule is legal, by the emitter's optional method `fits(kernel, shape, schedule, splits)`."""
    found, emitter = made[0].lower(call), made[0].emitter
    return found is not None and bool(
        emitter.fits(found.kernel, found.shape, call.schedule, found.cuts)  # type: ignore[attr-defined]
    )


def template_of(
    emitter: Emitter, root: Tensor | Sequence[Tensor], transposed: Sequence[str] = (), last: bool = False,
    precision: Precision = IEEE,
) -> Generated:  # fmt: skip
    """The template of a term over inputs, or of several, which one kernel computes.

    The weights `transposed` get another layout at load time; `last`: the result is channels-last; `precision` is that
    of float32 products.
    """
    made: list[Generated] = []
    first, *others = [root] if isinstance(root, Tensor) else root
    family = family_of([first, *others])
    bases = [(str(t.args[0].attr("name")),) if _partial(t) else () for t in (first, *others)]
    suffix = ("_last" if last else "") + (f"_{precision.name}" if precision.loss else "")

    def applies(call: Call) -> bool:
        return made[0].lower(made[0].written(call)) is not None

    template = Generated(
        name=f"{emitter.name}.{family}{suffix}", backend=emitter.name, loss=precision.loss, rate=precision.rate,
        precision=precision,
        pattern=spelled((first, *others)),
        code=identify(lambda call: _code(made[0], call), CODE_IDENTITY), family=family, applies=applies, layout=channels_last if last else None,
        flops=lambda call: made[0].effort(call), scratch=lambda call: _scratch(made[0], call),
        source=lambda call: _definitions(made[0], call),
        fits=partial(_fits, made) if hasattr(emitter, "fits") else None,
        space=lambda call: _space(made[0], call), version=emitter.version, root=first, others=tuple(others), emitter=emitter,
        setup=(*emitter.setup, *(["carried"] if any(bases) else [])), prep={name: prepared(name) for name in transposed},
        inplace=bases[0], beside=tuple(bases[1:]) if any(bases[1:]) else (),
    )  # fmt: skip
    made.append(template)
    return template


def family_of(roots: Sequence[Tensor]) -> str:
    """Family of a kernel in reports: attention, conv, contraction, reduction or pointwise."""
    nodes = topological(roots)
    ops = {t.op for t in nodes}
    if ops & {"attention", "masked_attention"}:
        return "attention"
    if "conv" in ops:
        return "conv"
    if ops & {"matmul", "linear"}:
        return "contraction"
    plain = (t.is_leaf or t.entry.pointwise or t.entry.kind == "view" or _partial(t) for t in nodes)
    return "pointwise" if all(plain) else "reduction"
