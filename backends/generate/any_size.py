"""Defines generated GPU kernels for every size: templates (kernels' patterns and code) whose source has the sizes as
parameters.

A *form* of such a kernel is the source of one schedule (tuning parameters) together with the range of sizes for which
it is correct; forms are found by generate/form_search.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...egraph.ir.tensor import Tensor
from ...egraph.saturate.lift import Numbers
from ...egraph.types.dims import Dim, DimExpr, bind, bounds, volume
from ...errors import ShapeError, TensorGraphsError
from ...extract.model.kernel import Call, Layout, Template
from ...extract.model.library_kernel import KernelBase, mentions_out
from ..ir.source_text import literal
from .emitter import Emitter
from .form_search import MAX_OPERAND_ELEMENTS, FormSearch, FreeSizeKernel
from .free_terms import SizedCall, free_call, free_terms
from .size_text import PLACEHOLDER, SIZE, Bounds, NoForm, SizedForm, python
from .template import GeneratedKernel
from .term_text import pattern_text


# ---------------------------------------------------------------- the template
@dataclass(frozen=True, eq=False)
class SizedKernel(FreeSizeKernel, KernelBase):
    """A generated GPU kernel whose source serves every size. It is measured at generic sizes (`origin`); schedule and
    sizes are those of a call (sizes are attributes)."""

    forms: dict[Any, tuple[SizedForm, ...] | str] = field(default_factory=dict)  # by schedule; text: why there are none

    applies = None
    flops = None
    space = None
    fits = None
    moves = None
    warp_specialized = None
    roots: Sequence[Tensor] = ()
    combinations = 1

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel reads, in order of first use in its pattern (`Template.operands`)."""
        return self.origin.operands

    @property
    def layout(self) -> Layout | None:
        """Function from a call to the strides of its channels-last output; None for a row-major output. It is that of
        the kernel at the generic sizes (`origin`)."""
        return self.origin.layout

    @property
    def lifted_from(self) -> tuple[Template, Call]:
        """The kernel, and its call, from which this kernel for every size was made; they are at generic sizes, primes
        that stand for free sizes (`Template.lifted_from`)."""
        return self.origin, self.origin_call

    def measured_as(self, call: Call) -> tuple[Template, Call]:
        """The kernel and call that are measured in place of `call` (`Template.measured_as`): (kernel at generic sizes,
        the primes that stood for free sizes in the search; its call with the schedule of `call`)."""
        return self.origin, replace(self.origin_call, schedule=dict(call.schedule))

    @property
    def code_identity(self) -> str:
        """Text that stands for the kernel's code in stored keys, made from the identity of the kernel at the generic
        sizes."""
        return f"any_size[{self.origin.identity}]"

    def alike(self, call: Call) -> None:
        """Key of the calls with which this kernel shares tuning results (`GeneratedKernel.alike`): none (None), because
        only the kernel at the generic sizes (primes that stand for free sizes) is tuned."""

    def job_fields(self) -> dict[str, Any]:
        """JSON fields of a tuning job (a request to measure in another process): none, as jobs are written for
        `origin`, the kernel at generic sizes (primes that stand for free sizes)."""
        return {}

    # ------------------------------------------------------------ code
    def write(self, call: Call) -> str:
        """Python statements of a call; at run time they choose the first form (source with its range of sizes) whose
        range contains the sizes."""
        names = {n: literal(call.attrs[n]) for n in self.ranges}
        found = self.all_forms(call)
        if len(found) == 1:
            return self._statement(found[0], call, names)
        lines = []
        for i, form in enumerate(found):
            tests = [t for n in self.ranges for t in _within(names[n], form.bounds[n], self.ranges[n])]
            head = "else:" if not tests or i + 1 == len(found) else f"{'el' * bool(i)}if {' and '.join(tests)}:"
            lines += [head, *("    " + line for line in self._statement(form, call, names).split("\n"))]
            if head == "else:":
                break
        return "\n".join(lines)

    def _statement(self, form: SizedForm, call: Call, names: Mapping[str, str]) -> str:
        text = form.statement.spelled(lambda v: python(v, names))
        for n, spelled_size in names.items():
            text = text.replace(SIZE.format(n), spelled_size)
        for operand in (*call.buffers, "scratch"):
            text = text.replace(PLACEHOLDER.format(operand), call.names.get(operand, operand))
        return text

    def writes_out(self, call: Call) -> bool:
        """Whether the statements of `call` store the result in a buffer that the program passes, instead of returning a
        new tensor (`Template.writes_out`)."""
        return mentions_out(self.write, self.operands, call)

    def source(self, call: Call) -> dict[str, str]:
        """Python definitions that the statements of a call need: name -> source."""
        return {name: text for form in self.all_forms(call) for name, text in form.definitions.items()}

    def scratch(self, call: Call) -> int:
        """Bytes of scratch memory for `call` at any size, enough for each form (source with its range of sizes); an
        expression if the call's sizes are symbolic."""
        total: Dim = 0
        for form in self.all_forms(call):
            total = total + bind(form.scratch, {n: call.attrs[n] for n in self.ranges})
        return total  # type: ignore[return-value]

    # ------------------------------------------------------------ forms
    @cached_property
    def _search(self) -> FormSearch:
        return FormSearch(
            self.origin, self.origin_call, self.free, self.free_call, self.ranges, self.generic, self.others
        )

    def all_forms(self, call: Call) -> tuple[SizedForm, ...]:
        """Forms (sources, each with its range of sizes) of a call's schedule, in the order in which they are tried.
        Raises ShapeError if there is none."""
        found = self.forms_of(call)
        if isinstance(found, str):
            raise ShapeError(f"{self.name} cannot be generated for every size: {found}")
        return found

    def bounds_of(self, call: Call) -> list[Bounds]:
        """For each source of a call's schedule, the range of sizes for which it is correct: name of a size ->
        (least, largest)."""
        return [form.bounds for form in self.all_forms(call)]

    def conditions_of(self, call: Call) -> list[str]:
        """Python expressions over the sizes that must be true for the kernel to serve `call`, because it computes
        addresses in 32 bits; empty if they always are."""
        elements = [volume(o.type.shape) for o in call.buffers.values()]
        return [f"{n} <= {MAX_OPERAND_ELEMENTS}" for n in elements if bounds(n)[1] > MAX_OPERAND_ELEMENTS]

    def forms_of(self, call: Call) -> tuple[SizedForm, ...] | str:
        """Forms (sources, each with its range of sizes) of a call's schedule, or the reason why there are none.
        Searched once per schedule."""
        chosen = dict(call.schedule) or dict(self.origin.space(self.origin_call)[0])
        key = tuple(sorted(chosen.items()))
        if key not in self.forms:
            try:
                self.forms[key] = tuple(self._search.forms(chosen))
            except NoForm as why:
                self.forms[key] = str(why)
        return self.forms[key]


def sized_kernel(
    template: GeneratedKernel, call: Call, numbers: Numbers, others: Sequence[Emitter] = ()
) -> SizedCall | None:
    """The kernel for every size, with its call, made from `template` and `call` at generic sizes (primes that stand for
    free sizes); None if its terms hold at these sizes only.

    Whether its source can be generalized is only found out by `SizedKernel.forms_of`. `numbers`: generic size -> size
    expression. `others`: emitters whose schedules may be used at sizes at which the chosen schedule has no form (source
    with a range of sizes).
    """
    ranges = {n: (atom.min, atom.max) for n, atom in sorted(numbers.graph.free_dims.items())}
    try:
        roots, free = free_terms(template.roots, numbers), free_call(call, numbers)
    except (TensorGraphsError, KeyError, ValueError, TypeError):
        return None
    if {*ranges} & {*template.operands}:
        return None
    made = SizedKernel(
        template.name, template.backend, pattern_text(roots), template, call, tuple(roots), free, ranges, dict(numbers.sizes), tuple(others),
        family=template.family, setup=tuple(dict.fromkeys((*template.setup, *(n for e in others for n in e.setup)))),
        version=template.version, prep=template.prep,
        inplace=template.inplace, beside=template.beside, dense=template.dense, loss=template.loss, rate=template.rate,
    )  # fmt: skip
    attrs = {n: DimExpr((((atom,), 1),)) for n, atom in numbers.graph.free_dims.items()}
    return SizedCall(template, call, made, replace(free, attrs=attrs))


def _within(name: str, own: tuple[int, int], all_sizes: tuple[int, int]) -> Iterator[str]:
    """Python conditions that a size is within a form's bounds `own`; bounds of `all_sizes` need none."""
    if own[0] > all_sizes[0]:
        yield f"{name} >= {own[0]}"
    if own[1] < all_sizes[1]:
        yield f"{name} <= {own[1]}"


__all__ = ["SizedKernel", "sized_kernel"]
