"""Holds the state of the kernel generation of one optimization with one backend: fusion groups (terms that one kernel
computes) of an e-graph, lowered to kernels.

A `Lowering` grows fusion groups (extract/fusion/groups.py), maximal (fusion/maximal.py), multi-output
(fusion/multi_output.py) and consumer fusion groups (fusion/consumer.py), lowers each (generate/template.py) in worker
processes (generate/lowering_pool.py), and caches the result, so that repeated layers are lowered once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from ...extract.candidates.image_layouts import image_classes
from ...extract.fusion.consumer import ConsumerFusion
from ...extract.fusion.groups import FusionGroups
from ...extract.fusion.maximal import MaximalFusion
from ...extract.fusion.multi_output import MultiOutputFusion
from ...extract.fusion.multi_output_group import MultiOutputGroup
from ...extract.fusion.policy import FusionGroup
from ...extract.fusion.repeated_blocks import RepeatedBlocks
from ...extract.model.backend import Generation
from ...extract.model.kernel import Call, Template
from ..ir.expr import walk
from ..ir.precision import IEEE, PRECISIONS, Precision, within
from ..machine import Machine, target
from .emitter import Lowered
from .kernel_family import family_of
from .lowered_terms import all_float32, is_right_strided
from .lowering_jobs import Job, flattened_terms
from .lowering_pool import Batch
from .lowering_requests import LoweringRequest, equal_values, reads_of, request_of, with_slices_given
from .template import GeneratedKernel, layout_key, template_of
from .weight_layouts import channels_innermost, channels_last, filters, is_unaligned

if TYPE_CHECKING:
    from .generator import KernelGenerator
    from .lowerings import Lowerings


BODIES = 2  # kept templates per output class and set of operands: alternative computations of one value


class Lowering:
    """The kernels that one optimization generates with one backend, and its cache of fusion groups lowered to kernel
    IR.

    A `Backend` for one optimization, made by `KernelGenerator.opened`. Not thread-safe.
    """

    generates = True

    def __init__(self, generator: KernelGenerator, owner: Lowerings) -> None:
        self.generator, self.owner = generator, owner
        self.emitter, self.name, self.device = generator.emitter, generator.name, generator.device
        self.helpers, self.templates = generator.helpers, generator.templates
        self.several, self.vectors = generator.several, generator.vectors
        self.unavailable = generator.unavailable
        self.precisions = within(owner.limit, self.emitter.precisions)
        self.known: dict[tuple[tuple[Tensor, ...], tuple[str, ...], bool, Precision], GeneratedKernel] = {}
        self.done: set[Hashable] = set()  # keys (`LoweringRequest.key`) of requests that were submitted
        self.answered: dict[Hashable, Sequence[Answer]] = {}  # key of a request -> templates that compute it

    def opened(self, lowerings: Lowerings | None = None) -> Lowering:
        """This object, which already belongs to an optimization (`KernelGenerator.opened`)."""
        return self

    def with_templates(self, templates: Sequence[Template]) -> Lowering:
        """A `Lowering` that shares this one's state, but offers the library kernels `templates`."""
        found = copy(self)
        found.templates = templates
        return found

    def generated(
        self,
        view: EGraphView,
        given: frozenset[int],
        types: Sequence[Type],
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[Template, tuple[int, ...], tuple[int, ...]]]:
        """Yields (template, output e-classes, operand e-classes) for every fusion group (terms for one kernel) of the
        e-graph `view` that one kernel can compute.

        Fusion groups are grown in one instance of a repeated block only (extract/fusion/repeated_blocks.py); a kernel
        found there is yielded for the other instances too. Of groups with equal outputs and operands, the `BODIES`
        templates (kernels' patterns and code) with the fewest flops, then the smallest kernels, are kept. Maximal
        groups come first, multi-output groups last. `given`: e-classes in memory before any kernel runs. `types`: type
        of each e-class. Once `enough` returns true, no more groups are grown; kernels of groups grown before are still
        yielded.
        """
        groups = FusionGroups(view, given, policies=self.generator.fusion_policies(view))
        images = image_classes(view) - given  # given values are row-major
        if self.several:
            first = MaximalFusion(groups)
            for whole in (first, MaximalFusion(groups, unrolled=True), MaximalFusion(groups, rows=False)):
                for group, template in self._at_once(whole, types, images, enough):
                    yield template, group.classes, tuple(c for _, c in group.leaves)
                if whole is first:
                    groups.settled, groups.unstarted, groups.unread = whole.settled, whole.unstarted, whole.unread
        repeated = RepeatedBlocks.of(view)
        for group, template in self._started(with_slices_given(groups, types).grown, types, images, enough):
            made, operands = group.classes, tuple(c for _, c in group.leaves)
            yield template, made, operands
            for classes in repeated.copies((*made, *operands)):
                yield template, tuple(classes[: len(made)]), tuple(classes[len(made) :])

    def packed_products(self, view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> Iterator[Generation]:
        """None (`Backend.packed_products`): kernels of a GPU are lowered when they are reached."""
        return iter(())

    def _started(
        self, groups: FusionGroups, types: Sequence[Type], images: frozenset[int], enough: Callable[[], bool]
    ) -> Iterator[tuple[FusionGroup | MultiOutputGroup, GeneratedKernel]]:
        """The grown fusion groups and the multi-output groups that one kernel can compute, each with its templates."""
        kept = list(self._lowered(groups, types, images, enough))
        made = {(*r.classes, *reads_of(r)) for r, _ in kept}
        for group, template in kept:
            if not any((c, *reads_of(group)) in made for c in equal_values(group, types)):
                yield group, template
        if self.several:
            once = {id(r): r for r, _ in kept if isinstance(r, FusionGroup)}  # once per group, not once per precision
            together = MultiOutputFusion(groups, list(once.values()), self.device.on_gpu)
            for several in (together, ConsumerFusion(together)):
                yield from self._lowered(several, types, images, enough)

    def _at_once(
        self, whole: MaximalFusion, types: Sequence[Type], images: frozenset[int], enough: Callable[[], bool]
    ) -> Iterator[tuple[FusionGroup | MultiOutputGroup, GeneratedKernel]]:
        """The maximal fusion groups that one kernel can compute, each with its templates.

        Yields as soon as a group is lowered, because time may run out. Multi-output groups without a kernel are
        reported to `whole`, which splits them.
        """
        for asked in (request_of(part, whole.view, types, images) for part in whole):
            group, found = asked.group, self.answers(asked)
            for template, _, _ in found:
                yield group, template
            if isinstance(group, MultiOutputGroup) and not found:
                whole.refused(group)
            if enough():
                return

    def _lowered(
        self,
        found: FusionGroups | MultiOutputFusion | ConsumerFusion,
        types: Sequence[Type],
        images: frozenset[int],
        enough: Callable[[], bool],
    ) -> Iterator[tuple[FusionGroup | MultiOutputGroup, GeneratedKernel]]:
        """(fusion group, template) pairs: the `BODIES` best templates of each group that one kernel can compute."""
        alike: dict[tuple[Any, ...], list[tuple[float, int, GeneratedKernel, FusionGroup | MultiOutputGroup]]] = {}
        view = found.view
        grown = found.until(enough) if isinstance(found, FusionGroups) else () if enough() else found
        for asked in self._ahead((request_of(group, view, types, images) for group in grown), enough):
            group = asked.group
            operands = frozenset(c for _, c in group.leaves)
            for template, effort, size in self.answers(asked):
                layouts = bool(template.prep), template.layout is not None, template.precision
                forms = alike.setdefault((group.classes, operands, *layouts), [])
                forms.append((effort, size, template, group))
        for forms in alike.values():
            for _, _, template, group in sorted(forms, key=lambda g: g[:2])[:BODIES]:
                yield group, template

    def _ahead(self, grown: Iterable[LoweringRequest], enough: Callable[[], bool]) -> Iterator[LoweringRequest]:
        """The requests in order, each after a worker process has lowered it (generate/lowering_pool.py), or at once if
        this process is to lower it.

        Workers start while requests are still growing. Once `enough` returns true, only requests that are already
        lowered are yielded.
        """
        beside = self.owner.open

        def fresh(one: LoweringRequest, lowering: Lowering) -> bool:
            """Whether the request is new to `lowering`; marks it as submitted."""
            known = one.key in lowering.done
            lowering.done.add(one.key)
            return not known

        def job(one: LoweringRequest) -> Job:
            wanted = [n for n, lowering in beside.items() if n == self.name or fresh(one, lowering)]
            return Job(
                tuple(wanted), flattened_terms(one.group.terms), (one.call,), one.weights, one.images, self.owner.limit,
                machine=self._machine(),
            )  # fmt: skip

        batch, asked = self.owner.pool.growing(), list[tuple[LoweringRequest, bool]]()
        for one in grown:
            asked.append((one, fresh(one, self)))
            if asked[-1][1]:
                batch.add(partial(job, one))
        batch.close()
        late = False
        for one, first in asked:
            late, key = late or enough(), one.key
            if first:
                self.owner.take_in(one.group.terms, batch.take_arrived() if late else batch.take(), key)
            if not late or key in self.answered:
                yield one
            elif first:  # not lowered: a later call may submit it again
                for lowering in beside.values():
                    lowering.done.discard(key)

    def _machine(self) -> Machine | None:
        """The GPU that worker processes schedule for; None for a backend of the CPU."""
        return target() if self.device.on_gpu else None

    def answers(self, asked: LoweringRequest) -> Sequence[Answer]:
        """(template, flops, number of expressions) of each generated kernel that computes the fusion group (terms for
        one kernel) of the request `asked`.

        Cached, because repeated layers give equal requests.
        """
        key = asked.key
        found = self.answered.get(key)
        if found is None:
            found = self.answered[key] = [
                (template, template.effort(own), template.size(own)) for template, own in self._in_all(asked)
            ]
        return found

    def prepare(self, asked: Sequence[tuple[Template, Call]]) -> Iterator[None]:
        """Lower the pairs `asked` of template (a kernel's pattern and code) and call in worker processes, which begin
        at once. The result is an iterator that takes the replies in and yields after each template."""
        by_template: dict[GeneratedKernel, list[Call]] = {}
        for template, call in asked:
            assert isinstance(template, GeneratedKernel)  # a lowering's own
            if layout_key(template.written(call)) not in template.lowered:
                by_template.setdefault(template, []).append(call)
        forms = {t: (turned, last, p.number) for (_, turned, last, p), t in self.known.items() if t in by_template}

        def job(template: GeneratedKernel) -> Job:
            return Job(
                (self.name,),
                flattened_terms(template.roots),
                tuple(by_template[template]),
                form=forms[template],
                machine=self._machine(),
            )

        return self._taken_in(by_template, self.owner.pool.batch([partial(job, t) for t in by_template]))

    def _taken_in(self, by_template: Mapping[GeneratedKernel, Sequence[Call]], batch: Batch) -> Iterator[None]:
        """Take in the replies of a batch with one job per template; yields after each template."""
        for template, calls in by_template.items():
            self.owner.take_in(tuple(template.roots), batch.take(), None)
            for call in calls:
                template.applies(call)
            yield

    def lower_all(self, terms: tuple[Tensor, ...], job: Job) -> Sequence[Answer]:
        """Lower, in a worker process, the `terms` of a `job`: a fusion group by every template (a kernel's pattern and
        code) that computes it, or given calls of one template.

        Returns (template, flops, number of expressions) of each kernel that computes the group; for calls of one
        template [], because the template caches their lowered kernels.
        """
        if job.form is None:
            return self.answers(
                LoweringRequest(MultiOutputGroup((), terms, (), ""), job.calls[0], job.weights, job.images)
            )
        transposed, last, number = job.form
        template = self._template(terms, transposed, last, PRECISIONS[number])
        for call in job.calls:
            template.applies(call)
        return []

    def _in_all(self, asked: LoweringRequest) -> Iterator[tuple[GeneratedKernel, Call]]:
        """The group's templates with their calls, in each permitted input precision.

        A reduced precision without templates is replaced by IEEE.
        """
        multiplies = any(
            t.op in ("matmul", "linear", "conv") or t.entry.law == "attention" for t in topological(asked.group.terms)
        )
        rounded = all_float32(o.type.dtype for o in asked.call.buffers.values())
        for precision in self.precisions if multiplies else (IEEE,):
            found = list(self._templates(asked, precision)) if rounded or not precision.loss else []
            yield from found or (self._templates(asked, IEEE) if precision.loss else ())

    def _templates(self, asked: LoweringRequest, precision: Precision) -> Iterator[tuple[GeneratedKernel, Call]]:
        """The group's templates with the calls that they fit.

        The forms are: plain; transposed weights for skinny GEMM; channels-last output where operands are channels-last
        images. Convolution filters always have the kernel's layout.
        """
        group, call, weights, _ = asked
        laid = tuple(dict.fromkeys(f for term in group.terms for f in filters(term, weights)))
        plain = self._template(group.terms, laid, precision=precision)
        lowered = plain.lower(call)
        if lowered is None:
            yield from self._with_transposed_weights(group, call, weights, None, precision)
            return
        turned = list(self._with_transposed_weights(group, call, weights, lowered, precision))
        other = self._across.get(precision, precision)
        if not turned and other is not precision and is_right_strided(lowered):
            yield from self._templates(asked, other)
            return
        if not any(precision in self._across or _aligns_a_weight(template, call) for template, _ in turned):
            yield plain, call
        if "out" in asked.images and not call.more and channels_last(call) != call.output.strides:
            inner = self._template(group.terms, laid, last=True, precision=precision)
            alike = {n: channels_innermost(o) if n in asked.images else o for n, o in call.operands.items()}
            written = inner.written(replace(call, operands=alike))
            if inner.lower(written) is not None:
                yield inner, written
        yield from turned

    @property
    def _across(self) -> Mapping[Precision, Precision]:
        """Tensor core precisions that need both operands contiguous along K -> the precision to use elsewhere."""
        return self.emitter.across

    def _with_transposed_weights(
        self,
        group: FusionGroup | MultiOutputGroup,
        call: Call,
        weights: tuple[str, ...],
        plain: Lowered | None,
        precision: Precision,
    ) -> Iterator[tuple[GeneratedKernel, Call]]:
        """The template over transposed weights with its call, if it may pay: for skinny GEMM, for float32 products on
        tensor cores, which need both operands contiguous along K, and otherwise for weights of unaligned shape.
        `plain`: the kernel with untransposed weights, None if it cannot be lowered."""
        matrices = tuple(w for w in weights if call.operands[w].type.rank == 2)
        odd = tuple(w for w in matrices if is_unaligned(call.operands[w].type))
        if plain is None:
            chosen = matrices if 1 < _rows(group.terms) <= self.vectors else odd
            if not chosen or family_of(group.terms) != "contraction":
                return
            plain = self._template(group.terms, chosen, precision=precision).lower(call)
        if plain is None or plain.shape.kind != "contraction":
            return
        chosen = matrices if plain.shape.m <= self.vectors or precision in self._across else odd
        rights = {e.value[0] for d in plain.shape.dots.values() for f in d.right for e in walk([f]) if e.op == "load"}
        turned = tuple(w for w in chosen if w in rights)
        template = self._template(group.terms, turned, precision=precision)
        if turned and template.lower(call) is not None:
            yield template, call

    def _template(
        self,
        terms: Tensor | Sequence[Tensor],
        transposed: tuple[str, ...],
        last: bool = False,
        precision: Precision = IEEE,
    ) -> GeneratedKernel:
        """The template of terms with given weight and output layouts, cached."""
        key = (terms,) if isinstance(terms, Tensor) else tuple(terms), transposed, last, precision
        if key not in self.known:
            self.known[key] = template_of(self.emitter, key[0], transposed, last, precision)
        return self.known[key]


# (template, flops of its call, number of expressions in its kernel)
Answer = tuple[GeneratedKernel, float, int]


def _aligns_a_weight(template: GeneratedKernel, call: Call) -> bool:
    """Whether a template changes the layout of a weight of unaligned shape."""
    return any(is_unaligned(call.operands[w].type) for w in template.prep)


def _rows(terms: Sequence[Tensor]) -> int:
    """The largest number of rows of a matrix product in terms; 0 without products."""
    products = (t for t in topological(terms) if t.op in ("matmul", "linear"))
    return max((prod(concrete(t.shape)[:-1]) for t in products), default=0)
