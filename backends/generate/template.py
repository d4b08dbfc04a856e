"""Makes the templates (patterns and code) of generated kernels, for fusion groups of the e-graph
(extract/fusion/groups.py) lowered through the kernel IR.

A fusion group's term becomes a `GeneratedKernel` template, whose code, scratch memory, schedules and source follow from
the term and the operands' layouts. An `Emitter` tiles the kernel and writes its source; this module, which all emitters
share, does everything else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from ...egraph.ir.memo import memo
from ...egraph.ir.places import has_limited_places
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types.dims import concrete
from ...extract.model.kernel import MAX_LAYOUT_COMBINATIONS, Call, Layout, Operand, output_names
from ...extract.model.library_kernel import KernelBase, mentions_out
from ...extract.model.work import graph_flops
from ..ir.kernel import Buffer, Kernel
from ..ir.precision import IEEE, Precision
from ..ir.tiling import Shape, repeated
from ..ir.unfusable import Unfusable
from ..lowering.concat_split import unsplit_flops
from ..lowering.split_reduction import partial_layout
from .call_code import call_code, launches, stored_schedule
from .emitter import Emitter, Lowered, PackedLowered
from .kernel_family import family_of, fills_constant, updates_input
from .lowered_terms import lowered_terms, multiplies_float32
from .recursion_limit import raise_recursion_limit
from .schedule import Move, Numbers, Schedule
from .term_text import pattern_text
from .weight_layouts import channels_last, laid_out, prepared, transposed_matrix

READ, LOOKS = 2000, 8  # maximum lowered nodes over all layout combinations; minimum number of combinations
CODE_IDENTITY = "generated.template_of.<locals>.<lambda>"  # part of the key of every stored measurement: do not change


@dataclass(frozen=True, eq=False)
class GeneratedKernel(KernelBase):
    """Template (a kernel's meaning and code, with open schedule parameters) of the kernel generated for one term, or
    for several terms over the same inputs (multi-output fusion).

    `root` and `others`: the terms of the outputs. `emitter`: writes the source. `precision`: input precision of float32
    matrix products. `last`: the output is channels-last. `lowered`: cache of kernels by layout.
    """

    root: Tensor
    emitter: Emitter
    others: tuple[Tensor, ...] = ()
    precision: Precision = IEEE
    last: bool = False
    lowered: dict[Any, Lowered | PackedLowered | None] = field(default_factory=dict)
    _alike: dict[Any, Hashable | None] = field(default_factory=dict, repr=False)
    _legal: dict[Any, bool] = field(default_factory=dict, repr=False)
    _writes: dict[Any, bool] = field(default_factory=dict, repr=False)

    @property
    def roots(self) -> list[Tensor]:
        """The terms of all outputs."""
        return [self.root, *self.others]

    @cached_property
    def nodes(self) -> list[Tensor]:
        """All nodes of the terms, operands first."""
        return topological(self.roots)

    @cached_property
    def bases(self) -> dict[str, str]:
        """Output -> operand, for outputs of which the kernel writes some elements only (scatter); the other elements
        have the operand's values."""
        outputs = zip(output_names(len(self.roots)), self.roots)
        return {name: str(t.args[0].attr("name")) for name, t in outputs if updates_input(t)}

    @cached_property
    def fills(self) -> dict[str, float]:
        """The number that elements of an output hold before the kernel runs, by output: kernels that scatter into a
        constant write some elements only."""
        outputs = zip(output_names(len(self.roots)), self.roots)
        return {name: t.args[0].attr("value") for name, t in outputs if fills_constant(t)}

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the inputs that the terms read, in order of first use."""
        return tuple(str(t.attr("name")) for t in self.nodes if t.op == "input")

    @cached_property
    def combinations(self) -> int:
        """Maximum number of combinations of operand layouts for which the kernel is lowered; smaller for large terms,
        because lowering hundreds of operations takes 0.1 s."""
        return min(MAX_LAYOUT_COMBINATIONS, max(LOOKS, READ // len(self.nodes)))

    @cached_property
    def work(self) -> float:
        """Flops of the terms, not counting what a schedule computes twice."""
        return max(graph_flops(self.roots), unsplit_flops(self.roots))

    @cached_property
    def is_packed_product(self) -> bool:
        """Whether the kernel is a product alone with packed weights on a CPU (`Template.is_packed_product`)."""
        own = self.emitter.arrays and not self.others and self.root.entry.fusion_role == "product"
        unpacked = [any(t.op == "dequantize" for t in topological([a])) for a in self.root.args] if own else []
        return any(unpacked) and all(x or a.op == "input" for x, a in zip(unpacked, self.root.args))

    @property
    def code_identity(self) -> str:
        """Text in the key of stored measurements that stands for the kernel's code. It is the same for all generated
        kernels: the pattern in the same key, which is the text of their terms, tells them apart."""
        return CODE_IDENTITY

    @property
    def layout(self) -> Layout | None:
        """Function from a call to the strides of its channels-last output; None if the output is row-major."""
        return channels_last if self.last else None

    def fits(self, call: Call) -> bool:
        """Whether the schedule of `call` is legal.

        Cached by layout and schedule, because a strategy (way to write kernels) may emit the kernel to decide.
        """
        key = _scheduled_key(call)
        legal = self._legal.get(key)
        if legal is None:
            found = self.lower(call)
            legal = found is not None and self.emitter.fits(found.kernel, found.shape, call.schedule, found.cuts)
            self._legal[key] = legal
        return legal

    def moves(self, schedule: Numbers) -> Iterator[Move]:
        """Yields the changes of one parameter that the schedule search tries from `schedule`, legal or not."""
        return self.emitter.moves(schedule)

    def warp_specialized(self, schedule: Numbers) -> bool:
        """Whether warps have different roles (producers, consumers) in a kernel with this schedule."""
        return self.emitter.warp_specialized(schedule)

    def applies(self, call: Call) -> bool:
        """Whether the terms can be lowered to the kernel IR and emitted for the layouts of `call`. A kernel that a
        worker process lowered is not unpickled for this."""
        written = self.written(call)
        key = layout_key(written)
        return (self.lowered[key] if key in self.lowered else self.lower(written)) is not None

    def flops(self, call: Call) -> float:
        """Flops of a call, including what its schedule computes twice (`effort`; `Template.flops`)."""
        return self.effort(call)

    def scratch(self, call: Call) -> int:
        """Bytes of scratch memory that a call needs: those of the partial results of a split reduction, else 0."""
        found = self.lower(call)
        parts = 1 if found is None else self.scheduled(call, found).scratch_parts
        if found is None or parts == 1:
            return 0
        return partial_layout(found.halves(parts)[0].buffers)[1]

    def source(self, call: Call) -> dict[str, str]:
        """Python definitions that a call's launches need: name -> source."""
        found: dict[str, str] = {}
        for launch in launches(self, call):
            found |= launch.definitions
        return found

    def space(self, call: Call) -> Sequence[Mapping[str, int]]:
        """Candidate schedules (parameter name -> integer) of a call, best guess first; empty if it cannot be
        lowered."""
        found = self._known(call)
        return found.space if found is not None else ()

    def write(self, call: Call) -> str:
        """The Python statements of a call: first copies of those operands that a scatter replaces in part, then the
        launches."""
        return call_code(self, call)

    def writes_out(self, call: Call) -> bool:
        """Whether the statements of `call` store the result in a buffer that the program passes, instead of returning a
        new tensor (`Template.writes_out`). Cached: repeated layers make equal calls."""
        key = _scheduled_key(call)
        if key not in self._writes:
            self._writes[key] = mentions_out(self.write, self.operands, call)
        return self._writes[key]

    def job_fields(self) -> dict[str, Any]:
        """JSON fields of a tuning job (a kernel to measure elsewhere) from which the kernel can be generated again,
        together with its pattern (`Template.job_fields`)."""
        leaves = {t.attr("name"): t.type.dtype for t in self.nodes if t.op == "input"}
        return {"leaves": leaves, "laid_out": sorted(self.prep), "channels_last": self.last,
                "precision": self.precision.name}  # fmt: skip

    def written(self, call: Call) -> Call:
        """`call` with its output in the layout that this kernel writes."""
        return call if self.layout is None else replace(call, output=Operand(call.output.type, self.layout(call)))

    def effort(self, call: Call) -> float:
        """Flops of a call, including what its schedule computes more than once."""
        known = self._known(call)
        if isinstance(known, PackedLowered) and not call.schedule:
            return known.effort
        found = self.lower(call)
        return self.work if found is None else self.effort_of(found, self.scheduled(call, found))

    def effort_of(self, found: Lowered, schedule: Schedule) -> float:
        """Flops of calls whose lowered kernel is `found` with a schedule."""
        rows, columns = schedule.tile(found.shape)
        return self.work + repeated(found.kernel, found.shape, rows, columns) + schedule.again(found.kernel)

    def size(self, call: Call) -> int:
        """Number of expressions in the lowered kernel of `call`; 0 if it cannot be lowered."""
        found = self.lower(call)
        return len(found.kernel.exprs) if found is not None else 0

    def alike(self, call: Call) -> Hashable | None:
        """Key under which calls share tuning results: calls with equal keys likely have the same best schedule, even
        with different prologues and epilogues. None if the terms cannot be lowered.

        The key holds the emitter, the precision, the rows, columns and reduction extents, the innermost axes of images
        (tensors of rank > 2), and the optional schedule parameters that the kernel supports. Cached by layout.
        """
        key = layout_key(call)
        if key not in self._alike:
            found = self.lower(call)
            self._alike[key] = None if found is None else self._tuning_key(call, found)
        return self._alike[key]

    def _tuning_key(self, call: Call, found: Lowered) -> Hashable:
        s = found.shape
        batch, inner = prod(a.size for a in s.batch), tuple(a.size for a in s.inner)
        rights = len({d.right for d in s.dots.values()})
        images = [o for o in call.buffers.values() if o.type.rank > 2]
        lie = frozenset(
            (o.type.rank, min(range(o.type.rank), key=lambda i: (o.strides[i] == 0, o.strides[i]))) for o in images
        )
        forms = frozenset(name for one in found.space for name in self.emitter.parse(one).forms)
        own = self.emitter.name, self.precision
        return *own, s.kind, s.m, s.n, batch, inner, s.walks, rights, bool(self.prep), lie, forms

    def scheduled(self, call: Call, found: Lowered) -> Schedule:
        """The typed schedule of a call; if the call has none, the best guess of its lowered kernel `found`.

        Raises UsageError for parameters that no strategy (way to write kernels) has.
        """
        return self.emitter.parse(stored_schedule(found, call))

    def lower(self, call: Call) -> Lowered | None:
        """Lower the terms to the kernel IR for the layouts of `call`, and rank their schedules; None if that is
        impossible. Cached by layout."""
        found = self._known(call)
        if isinstance(found, PackedLowered):
            found = self.lowered[layout_key(call)] = found.opened()
        return found

    def _known(self, call: Call) -> Lowered | PackedLowered | None:
        """The same, or as a worker process has packed it (generate/lowering_worker.py)."""
        key = layout_key(call)
        if key not in self.lowered:
            self.lowered[key] = self._lower(call)
        return self.lowered[key]

    def lower_for(self, call: Call) -> Lowered | None:
        """Lower the terms for the layouts of `call` with the call's schedule as the only candidate, without ranking;
        None if that is impossible.

        Cached like `lower`, whose results it replaces.
        """
        read = self._read(call)
        found = None if read is None else Lowered(read[0], read[1], (dict(call.schedule),))
        self.lowered[layout_key(call)] = found
        return found

    def kernel(self, call: Call) -> Kernel | None:
        """The kernel in the IR for the layouts of `call`, without schedules; None if the terms cannot be lowered for
        them."""
        read = self._read(call)
        return None if read is None else read[0]

    def _lower(self, call: Call) -> Lowered | None:
        read = self._read(call)
        if read is None or (self.fills and self.emitter.carries):
            return None
        kernel, shape, splits = read
        try:
            found = Lowered(kernel, shape, tuple(self._space(kernel, shape, splits)))
            return found if found.space and self.emitter.emits(found, found.space[0]) else None
        except (Unfusable, RecursionError):  # RecursionError: deeper than `raise_recursion_limit` allows
            return None

    def _read(self, call: Call) -> tuple[Kernel, Shape, bool] | None:
        """The kernel of a call, its shape, and whether split reduction is legal; None if there is none."""
        buffers = {n: Buffer(o.type.dtype, concrete(o.type.shape), o.strides) for n, o in call.buffers.items()}
        for name in self.prep:
            buffers[name] = laid_out(buffers[name], call)
        raise_recursion_limit(sum(len(t.args) > 0 for t in self.nodes))
        return lowered_terms(tuple(self.roots), tuple(buffers.items()), self.emitter.contracts)

    def _space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Numbers]:
        if self.precision is IEEE:
            return self.emitter.space(kernel, shape, splits)
        worth = multiplies_float32(kernel, shape) and shape.m >= self.precision.rows
        return self.emitter.rounding(kernel, shape, splits, self.precision) if worth else ()


def layout_key(call: Call) -> Hashable:
    """Cache key of results that depend on the layouts of a call only: strides and dtypes of operands and outputs."""
    operands = (*call.operands.values(), *call.outputs)
    return len(call.outputs), tuple([(o.strides, o.type.dtype) for o in operands])


def _scheduled_key(call: Call) -> Hashable:
    """Cache key of the layouts and the schedule of a call."""
    return layout_key(call), tuple(sorted(call.schedule.items()))


@memo(4096)  # forms of a kernel, in several backends and precisions, have equal terms
def _drawn(roots: tuple[Tensor, ...]) -> str:
    """Ending of the version of kernels that were once measured with few visible positions, because a limit on their
    number hid that a mask compares it with positions; "" for others."""
    return ".all" if has_limited_places(topological(roots), ("input",)) else ""


def template_of(
    emitter: Emitter, root: Tensor | Sequence[Tensor], transposed: Sequence[str] = (), last: bool = False,
    precision: Precision = IEEE,
) -> GeneratedKernel:  # fmt: skip
    """The generated kernel that computes `root`: a term over inputs, or several terms. `emitter` writes its source.

    `transposed`: names of weights whose layout changes at load time. `last`: the output is channels-last. `precision`:
    input precision of float32 matrix products.
    """
    first, *others = [root] if isinstance(root, Tensor) else root
    roots = (first, *others)
    family = family_of(roots)
    bases = [(str(t.args[0].attr("name")),) if updates_input(t) else () for t in (first, *others)]
    suffix = ("_last" if last else "") + (f"_{precision.name}" if precision.loss else "")
    return GeneratedKernel(
        f"{emitter.name}.{family}{suffix}", emitter.name, pattern_text(roots), first, emitter, tuple(others),
        precision, last,
        family=family, loss=precision.loss, rate=precision.rate, version=emitter.version_of(roots) + _drawn(roots),
        setup=(*emitter.setup, *(["carried"] if any(bases) and not emitter.carries else [])),
        prep={name: (transposed_matrix if emitter.arrays else prepared)(name) for name in transposed},
        inplace=bases[0], beside=tuple(bases[1:]) if any(bases[1:]) else (),
    )  # fmt: skip
