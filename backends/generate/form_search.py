"""Searches for the forms of a generated GPU kernel: source texts that hold at every size, or for a range of sizes.

The kernel is emitted at several choices of sizes (points). The texts must be equal up to integers, and each integer
that differs must be a known function of the sizes (generate/size_fit.py). The function replaces the integer; its
arguments are parameters of the kernel, or variables of the program if the integer is in the launch. The result is a
form (`SizedForm`). Points are sizes that no tile divides, so the text has all masks and its tile counts are rounded up.
Axes that only occur in grids, loop bounds, masks and addresses can be free. An axis whose size determines the shape of
a tile (a reduction held whole in registers) cannot be free, because the texts then differ in more than integers. Where
a tile is at least as large as the extent, emitters omit loops and masks: the text of a strategy (way to write kernels)
with `Strategy.masked` is correct at such sizes, too; the text of another strategy is used from the smallest size on at
which it equals the emitted text, and smaller sizes get a schedule of a masked strategy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from typing import Any

from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, bind, volume
from ...errors import TensorGraphsError
from ...extract.model.kernel import Call
from ...extract.model.sizes import bound_call, bound_terms
from ..ir.unfusable import Unfusable
from .call_code import launches
from .emitter import Emitter
from .large_sizes import changes_at_large_sizes
from .size_fit import LimitedFit, Sizes
from .size_probes import FAR, HELD_OUT, SMALL, TOP, held_out, probes
from .size_text import PLACEHOLDER, REDUCED, SIZE, Bounds, EmittedTexts, NoForm, SizedForm, Text, skeleton
from .template import GeneratedKernel, template_of

LEAST_POINTS = 4  # points with equal text that a form needs
NEXT_BEST = 4  # schedules of the same ranking tried if the chosen one has no form
ALTERNATIVES = 12  # schedules tried for sizes that the chosen one leaves
BOXES = frozenset(("boxes", "inside"))  # parameters of schedules that load through tensor maps
MAX_OPERAND_ELEMENTS = (1 << 31) - 1  # elements of an operand: addresses are 32 bits
PREFIX = "size_"  # of size parameters of kernels


@dataclass(frozen=True, eq=False)
class FreeSizeKernel:
    """A generated GPU kernel with its terms in free sizes.

    `origin`, `origin_call`: the kernel and its call at generic sizes (primes that stand for free sizes). `free`,
    `free_call`: terms and call in free sizes. `ranges`: least and largest value of each free size. `generic`: the
    generic sizes. `others`: emitters whose kernels may serve sizes for which the chosen schedule has no form.
    """

    origin: GeneratedKernel
    origin_call: Call
    free: tuple[Tensor, ...]
    free_call: Call
    ranges: Bounds
    generic: Sizes
    others: tuple[Emitter, ...] = ()


@dataclass(frozen=True, eq=False)
class FormSearch(FreeSizeKernel):
    """Search for the forms (sources, each with the range of sizes for which it is correct) of one kernel."""

    _known: dict[Any, EmittedTexts | str] = field(default_factory=dict)

    def forms(self, chosen: Mapping[str, int]) -> Iterator[SizedForm]:
        """Yields the form of the schedule `chosen` (or that of the next best schedule with one), then forms for the
        sizes that it does not serve.

        Raises NoForm if some sizes have no form.
        """
        own, reason = None, ""
        at = lambda sizes: self._at(sizes, {}, self.origin.emitter)[2]
        if changes_at_large_sizes(self.origin, self.origin_call, at, self.free_call, self.ranges, self.generic):
            raise NoForm("the kernel is another one at the largest sizes")
        space = self.origin.space(self.origin_call)
        for schedule in [chosen, *_unique(space, chosen)[:NEXT_BEST]]:
            try:
                own = self.form(schedule, self.ranges)
                yield own
                break
            except NoForm as why:
                reason = reason or str(why)
        if own is None:
            yield self._other(self.ranges, chosen, reason)
            return
        if own.bounds == self.ranges:
            return
        if len(self.ranges) > 1:
            yield self._other(self.ranges, chosen, "")
            return
        ((name, (low, high)),) = self.ranges.items()
        least, most = own.bounds[name]
        for first, last in ((low, least - 1), (most + 1, high)):
            if first <= last:
                yield self._other({name: (first, last)}, chosen, "")

    def _other(self, bounds: Bounds, chosen: Mapping[str, int], why: str) -> SizedForm:
        """The form of another schedule, of a masked strategy, for all sizes within bounds.

        Schedules ranked for the largest size are tried first. Raises NoForm, with the message `why` if given,
        if there is none.
        """
        for emitter in (self.origin.emitter, *self.others):
            largest = self._points(bounds)[0]
            near, _, template = self._at(largest, {}, emitter)
            own = self.origin.space(self.origin_call) if emitter is self.origin.emitter else ()
            found = [{k: v for k, v in s.items() if k not in BOXES} for s in (*template.space(near), *own)]
            found = [s for s in _unique(found, chosen) if emitter.masked(s)]
            for schedule in found[:ALTERNATIVES]:
                if isinstance(self.emitted(schedule, largest, emitter), str):
                    continue
                for within in (bounds, self.ranges):
                    try:
                        form = self.form(schedule, within, emitter)
                    except NoForm as error:
                        why = why or str(error)
                        continue
                    if all(form.bounds[n][0] <= low and high <= form.bounds[n][1] for n, (low, high) in bounds.items()):
                        return form
        raise NoForm(why or f"no schedule is legal for all of {dict(bounds)}")

    def form(self, schedule: Mapping[str, int], within: Bounds, emitter: Emitter | None = None) -> SizedForm:
        """The form of one schedule for the sizes in the range `within`, or for a part of them (`SizedForm.bounds`).

        `emitter`: the emitter of the schedule, by default that of `origin`. Raises NoForm if the texts that the
        schedule emits at several sizes cannot be generalized to one.
        """
        points, emitter = self._points(within), emitter or self.origin.emitter
        tried = [(point, self.emitted(schedule, point, emitter)) for point in points]
        alike = self._alike(schedule, tried, within, emitter)
        all_legal = all(isinstance(found, EmittedTexts) for _, found in tried)
        shape = tuple(map(skeleton, alike[0][1].texts))
        alike_points = [p for p, _ in alike]
        texts = [Text.of(t, alike_points) for t in zip(*(e.texts for _, e in alike), strict=True)]
        bounds = self._bounds(schedule, texts, shape, alike_points, within, emitter, all_legal)
        self._confirm(schedule, texts, shape, bounds, emitter)
        (scratch,) = texts[1].values
        if isinstance(scratch, LimitedFit):
            raise NoForm("the scratch size is bounded by a constant at some sizes")
        definitions = [name for name, _ in alike[0][1].definitions]
        return self._form(texts[0], scratch, dict(zip(definitions, texts[2:], strict=True)), bounds, emitter)

    def _alike(
        self, schedule: Mapping[str, int], tried: Sequence[tuple[Sizes, EmittedTexts | str]], within: Bounds, emitter: Emitter
    ) -> list[tuple[Sizes, EmittedTexts]]:  # fmt: skip
        """Points whose texts have a common form, as (sizes, texts).

        For a masked schedule this is the form at the largest legal size, which is also right for smaller sizes;
        if few points have it, further points near that size are tried. Otherwise it is the most frequent form.
        Raises NoForm if there are too few points.
        """
        seen = [(point, found) for point, found in tried if isinstance(found, EmittedTexts)]
        around = emitter.masked(schedule) and len(within) == 1
        if around and not seen:
            ((name, (low, high)),) = within.items()
            small: list[Sizes] = [{name: n} for n in SMALL if low <= n <= high]
            known = [(point, self.emitted(schedule, point, emitter)) for point in small]
            seen = [(point, found) for point, found in known if isinstance(found, EmittedTexts)][:1]
        if not seen:
            raise NoForm(str(tried[0][1]))
        shapes = Counter(tuple(map(skeleton, e.texts)) for _, e in seen)
        shape = next(iter(shapes)) if around else shapes.most_common(1)[0][0]
        alike = [(p, e) for p, e in seen if tuple(map(skeleton, e.texts)) == shape]
        if around and len(alike) < LEAST_POINTS:
            alike = self._near(schedule, alike[0][0], shape, within, emitter)
        if len(alike) < min(LEAST_POINTS, len(tried)):
            raise NoForm("the emitted source has another structure at every size")
        return alike

    def _near(
        self, schedule: Mapping[str, int], point: Sizes, shape: Sequence[str], within: Bounds, emitter: Emitter
    ) -> list[tuple[Sizes, EmittedTexts]]:  # fmt: skip
        """Points around a given one, in one free size, at which a schedule's text has the form `shape`, as (sizes,
        texts). Further away tiles are illegally large or small for the extent, or a row held whole has another text
        than a loop."""
        ((name, (low, high)),) = within.items()

        def of_form(size: int) -> bool:
            found = self.emitted(schedule, {name: size}, emitter)
            return isinstance(found, EmittedTexts) and tuple(map(skeleton, found.texts)) == tuple(shape)

        least, most = (_last(point[name], end, of_form) for end in (low, min(high, max(TOP, point[name]))))
        found = [(p, self.emitted(schedule, p, emitter)) for p in self._points({name: (least, most)})]
        return [
            (p, e) for p, e in found if isinstance(e, EmittedTexts) and tuple(map(skeleton, e.texts)) == tuple(shape)
        ]

    def _form(
        self, statement: Text, scratch: Dim, definitions: Mapping[str, Text], bounds: Bounds, emitter: Emitter
    ) -> SizedForm:
        made, names, given = dict[str, str](), dict[str, str](), dict[str, str]()
        for name, text in definitions.items():
            sized = emitter.with_sizes(text, name, sorted(self.ranges), PREFIX)
            if sized is None:
                raise NoForm("a size where the compiler needs a constant")
            whole, used = sized
            given[f"SIZES_{name}"] = emitter.size_arguments([SIZE.format(n) for n in used])
            if not name.startswith("kernel"):
                made[name] = whole
                continue
            digest = blake2b(whole.encode(), digest_size=5).hexdigest()
            names[name] = f"{self.origin.family}_sized_{digest}"
            made[names[name]] = re.sub(rf"\b{name}\b", names[name], whole)
        pieces = (re.sub(r"SIZES_kernel\d+_", lambda m: given[m[0]], p) for p in statement.pieces)
        pieces = (re.sub(r"\bkernel\d+_\b", lambda m: names[m[0]], p) for p in pieces)
        return SizedForm(Text(tuple(pieces), statement.values), scratch, made, bounds)

    def _points(self, within: Bounds) -> tuple[Sizes, ...]:
        """Points (choices of sizes) within bounds at which all operands are addressable, the largest first."""
        return tuple(filter(self._addressable, probes(within)))

    def _addressable(self, sizes: Sizes) -> bool:
        """Whether 32-bit addresses suffice for all operands."""
        return all(bind(v, sizes) <= MAX_OPERAND_ELEMENTS for v in self.volumes)  # type: ignore[operator]

    @cached_property
    def volumes(self) -> tuple[Dim, ...]:
        """For each operand and result, its number of elements as an expression in free sizes; 32-bit addresses suffice
        where all are at most `MAX_OPERAND_ELEMENTS`."""
        return tuple(volume(o.type.shape) for o in self.free_call.buffers.values())

    def _bounds(
        self, schedule: Mapping[str, int], texts: Sequence[Text], shape: Sequence[str], points: Sequence[Sizes],
        within: Bounds, emitter: Emitter, all_legal: bool,
    ) -> Bounds:  # fmt: skip
        """The sizes for which the form of `texts`, inferred at `points`, is right.

        With several free sizes and a masked strategy that is legal at all points: all of `within`. Otherwise a
        range around the points: down to the smallest size at which the emitted text equals the inferred one
        (masked: to the lower bound), and up to the size above which the emitted text has another form. Raises
        NoForm if there is no such range.
        """
        masked = emitter.masked(schedule)
        if masked and all_legal and len(within) > 1:
            return within

        def emits(sizes: Sizes) -> tuple[str, ...]:
            found = self.emitted(schedule, sizes, emitter)
            return found.texts if isinstance(found, EmittedTexts) else ()

        def equal(sizes: Sizes) -> bool:
            return bool(found := emits(sizes)) and all(t.at(sizes) == f for t, f in zip(texts, found, strict=True))

        def equal_with(name: str, size: int) -> bool:
            return equal({**least, name: size})

        def alike_with(name: str, size: int) -> bool:
            return tuple(map(skeleton, emits({name: size}))) == tuple(shape)

        least = {n: min(p[n] for p in points) for n in within}
        most = {n: max(p[n] for p in points) for n in within}
        if not all_legal and len(within) > 1:
            raise NoForm("the schedule is legal at some sizes only, and several sizes are free")
        if not masked and not equal(least):
            raise NoForm("the tiles must divide the sizes: the schedule has no bounds checks")
        for n, (low, high) in within.items():
            least[n] = low if masked else _last(least[n], low, partial(equal_with, n))
            if masked:  # masks at the last size of this form mean that its tiles reach one size further
                far = min(high, FAR) - (min(high, FAR) + 1) % 2
                last = _last(most[n], max(far, most[n]), partial(alike_with, n))
                most[n] = high if last >= far else last + 1
            else:
                most[n] = high if all_legal else _last(most[n], high, partial(alike_with, n))
        return {n: (least[n], most[n]) for n in within}

    def _confirm(
        self, schedule: Mapping[str, int], texts: Sequence[Text], shape: Sequence[str], bounds: Bounds, emitter: Emitter
    ) -> None:
        """Compare the inferred texts with emitted texts at other sizes.

        Raises NoForm if one differs, or if the schedule is not legal there.
        """
        for sizes in islice(filter(self._addressable, held_out(bounds)), HELD_OUT):
            found = self.emitted(schedule, sizes, emitter)
            if isinstance(found, str):
                if emitter.masked(schedule):  # a tile far larger than the extent
                    continue
                raise NoForm(f"not legal at {dict(sizes)}: {found}")
            if tuple(map(skeleton, found.texts)) != tuple(shape):  # without loops or masks
                continue
            if any(t.at(sizes) != f for t, f in zip(texts, found.texts, strict=True)):
                raise NoForm(f"the emitted source at {dict(sizes)} differs from the one inferred from other sizes")

    def emitted(self, schedule: Mapping[str, int], sizes: Sizes, emitter: Emitter) -> EmittedTexts | str:
        """The texts that `emitter` writes with a schedule at some sizes, or the reason why it cannot. Cached."""
        key = emitter.name, tuple(sorted(schedule.items())), tuple(sorted(sizes.items()))
        if key not in self._known:
            try:
                self._known[key] = self._emit(schedule, sizes, emitter)
            except (TensorGraphsError, Unfusable, RecursionError, KeyError) as error:
                self._known[key] = str(error) or type(error).__name__
        return self._known[key]

    def _at(
        self, sizes: Sizes, schedule: Mapping[str, int], emitter: Emitter
    ) -> tuple[Call, dict[str, str], GeneratedKernel]:  # fmt: skip
        """(call at given sizes, operand -> placeholder in emitted text, the kernel's template at these sizes)."""
        origin = self.origin
        terms = bound_terms(self.free, sizes)
        template = template_of(emitter, terms, tuple(origin.prep), origin.last, origin.precision)
        names = {o: PLACEHOLDER.format(o) for o in (*self.free_call.buffers, "scratch")}
        return replace(bound_call(self.free_call, sizes), schedule=dict(schedule), attrs={}), names, template

    def _emit(self, schedule: Mapping[str, int], sizes: Sizes, emitter: Emitter) -> EmittedTexts:
        call, names, template = self._at(sizes, schedule, emitter)
        call = replace(call, names=names)
        if template.lower_for(call) is None or not template.fits(call):
            raise Unfusable("a schedule that is not legal at every size")
        statement, definitions = template.write(call), dict[str, str]()
        for i, launch in enumerate(launches(template, call)):
            own = f"kernel{i}_"
            statement, texts = emitter.sized_launch(launch, statement, dict(launch.definitions))
            statement = re.sub(rf"(\b|SIZES_){launch.name}\b", rf"\g<1>{own}", statement)
            definitions |= {
                own if name == launch.name else name: _renamed(re.sub(rf"\b{launch.name}\b", own, text))
                for name, text in texts.items()
            }
        return EmittedTexts(statement, template.scratch(call), tuple(definitions.items()))


def _renamed(text: str) -> str:
    """The text with names of reduction axes, which contain sizes, numbered in order of occurrence."""
    names: dict[str, str] = {}
    return REDUCED.sub(lambda found: names.setdefault(found[0], f"r_{len(names)}"), text)


def _unique(schedules: Iterable[Mapping[str, int]], without: Mapping[str, int]) -> list[dict[str, int]]:
    """The distinct schedules other than `without`."""
    found = {tuple(sorted(s.items())): dict(s) for s in schedules}
    found.pop(tuple(sorted(without.items())), None)
    return list(found.values())


def _last(good: int, end: int, holds: Callable[[int], bool]) -> int:
    """The size nearest to `end` for which `holds` is true, by bisection between `good`, for which it is true, and
    `end`."""
    if holds(end):
        return end
    while abs(end - good) > 1:
        middle = (good + end) // 2
        good, end = (middle, end) if holds(middle) else (good, middle)
    return good


# ---------------------------------------------------------------- points
