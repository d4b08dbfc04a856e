"""Partitions the values of a graph into sets as large as one kernel can compute: the parts of maximal fusion, which
maximal.py describes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from .values import MaximalFusionValues

MAX_NEARBY_PARTS = 32  # number of recently begun parts considered for a value besides those of its consumers
MAX_SIZE_RATIO = 16  # largest ratio of the element counts of values in a part


@dataclass(eq=False)
class MaximalPart:
    """Values of a graph that one kernel computes (maximal fusion).

    Each value has `rows` elements, or `rows` * `depth` before a reduction of `depth` elements to one. `wide`: element
    counts of concatenations of such values. `extent`: (number of results, reduced length, stride in elements) that all
    its reductions share. `members`: its e-classes. `after`: indices of the parts that read this one. `reads`: bitset of
    the e-classes that it reads among those in memory before any kernel runs (inputs, weights).
    """

    rows: int
    depth: int = 1
    wide: set[int] = field(default_factory=set)
    extent: tuple[int, int, int] | None = None
    members: list[int] = field(default_factory=list)
    after: set[int] = field(default_factory=set)
    reads: int = 0

    def sizes(self) -> set[int]:
        """Element counts that values of the part may have: those of results, of values before a reduction, and of
        concatenations."""
        return {self.rows, self.rows * self.depth, *self.wide}


@dataclass
class MaximalPartition:
    """Assignment of a graph's values to the parts of maximal fusion, consumers first.

    Each value joins a consumer's part, or a part that reads the same memory, if the sizes match and the parts stay
    acyclic.
    """

    values: MaximalFusionValues
    parts: list[MaximalPart] = field(default_factory=list)
    home: dict[int, int] = field(default_factory=dict)  # class -> its part
    readers: dict[int, set[int]] = field(default_factory=dict)  # class -> classes of parts that read it
    # class -> (concatenation, its joined values)
    wholes: dict[int, list[tuple[int, set[int]]]] = field(default_factory=dict)
    later: list[int] = field(default_factory=list)  # per part: bitset of the parts that depend on it, transitively
    fitting: list[int] = field(default_factory=list)  # indices of the parts that one kernel may compute

    def __post_init__(self) -> None:
        values = self.values
        for c in reversed(values.order):
            if values.recomputed[c]:
                continue
            users = {self.home[q] for q in self.readers.get(c, ())}
            number = self._chosen(c, users)
            part = self.parts[number]
            part.members.append(c)
            part.reads |= values.below[c]
            self._add_dependency(number, users - {number})
            self.home[c] = number
            for k in values.sources(c):
                self.readers.setdefault(k, set()).add(c)
            if values.op(c) == "concat":
                whole = c, values.concatenated_values(c)
                for k in whole[1]:
                    self.wholes.setdefault(k, []).append(whole)
        place = {c: n for n, c in enumerate(values.order)}
        for n, a in enumerate(self.fitting):
            for b in self.fitting[n + 1 : n + 1 + MAX_NEARBY_PARTS]:
                if self._may_merge(a, b) and not self._separated(a, b):
                    self._merge(a, b)
        for part in self.parts:
            part.members.sort(key=place.__getitem__)

    def _may_merge(self, a: int, b: int) -> bool:
        """Whether two parts read the same memory and their sizes permit a merge (not always known when their values
        were assigned)."""
        first, second = sorted((self.parts[a], self.parts[b]), key=lambda p: p.extent is None)
        if not (first.members and second.members and first.reads & second.reads):
            return False
        if first.rows == second.rows:
            return second.extent in (None, first.extent)
        return second.extent is None and second.rows == first.rows * first.depth and not second.wide

    def _separated(self, a: int, b: int) -> bool:
        """Whether a third part depends on one of two parts and the other depends on it."""
        first, second = self.parts[a].after, self.parts[b].after
        return self._depends(first - {b}, b) or self._depends(second - {a}, a)

    def _merge(self, a: int, b: int) -> None:
        """Merge the parts with the numbers `a` and `b` into one of them, that with a reduction if only one has any; the
        other one becomes empty."""
        into, gone = sorted((a, b), key=lambda n: self.parts[n].extent is None)
        one, other = self.parts[into], self.parts[gone]
        self.home |= dict.fromkeys(other.members, into)
        one.members += other.members
        one.wide |= other.wide
        one.reads |= other.reads
        one.after = (one.after | other.after) - {into, gone}
        for part in self.parts:
            if gone in part.after:
                part.after = (part.after - {gone}) | ({into} if part is not one else set())
        self.parts[gone] = MaximalPart(other.rows)
        both = 1 << into | 1 << gone
        new = (self.later[into] | self.later[gone]) & ~both
        self.later[into] = new
        for n, later in enumerate(self.later):
            if later & both:
                self.later[n] = (later | new | 1 << into) & ~(1 << gone)

    def _chosen(self, cls: int, users: set[int]) -> int:
        """The index of the part for a class; a new part if none is suitable."""
        read = self.values.below[cls]
        if self.values.fits(cls):
            beside = (n for n in self.fitting[-MAX_NEARBY_PARTS:] if n not in users and self.parts[n].reads & read)
            for n in (*sorted(users), *beside):
                if self._may_join(cls, n) and not self._depends(users - {n}, n):
                    self._widen(cls, self.parts[n])
                    return n
        extent = self.values.extent(cls) if self.values.reduces(cls) else None
        size = self.values.groups.facts.elements(cls)
        self.parts.append(MaximalPart(size) if extent is None else MaximalPart(extent[0], extent[1], extent=extent))
        self.later.append(0)
        self.fitting += [len(self.parts) - 1] if self.values.fits(cls) else []
        return len(self.parts) - 1

    def _may_join(self, cls: int, number: int) -> bool:
        """Whether a class may join a part."""
        part = self.parts[number]
        if not self.values.fits(part.members[0]):
            return False
        if self.values.unrolled:
            return self._sizes_are_multiples(cls, part)
        if self.values.reduces(cls):
            rows, depth, _ = extent = self.values.extent(cls)
            if part.extent is not None:
                return part.extent == extent
            same = part.rows == rows or (part.rows == rows * depth and not part.wide)
            return same or (self.values.groups.facts.elements(cls) == rows and self._is_piece(cls, number))
        size = self.values.groups.facts.elements(cls)
        if self.values.op(cls) == "concat":
            each = {self.values.groups.facts.elements(k) for k in self.values.concatenated_values(cls)}
            open_ = part.depth == 1 and not part.wide
            return size in part.sizes() and (len(each) > 1 or each <= part.sizes() or open_)
        return size in part.sizes() or self._is_piece(cls, number)

    def _sizes_are_multiples(self, cls: int, part: MaximalPart) -> bool:
        """Whether all element counts, the class's included, are small multiples of the smallest one."""
        sizes = {self.values.groups.facts.elements(cls), *part.sizes()}
        return all(n % min(sizes) == 0 and n <= MAX_SIZE_RATIO * min(sizes) for n in sizes)

    def _is_piece(self, cls: int, number: int) -> bool:
        """Whether all values of the part so far are concatenations of values like this one."""
        part, elements = self.parts[number], self.values.groups.facts.elements
        if part.depth > 1 or part.wide:
            return False
        own = [those for q, those in self.wholes.get(cls, ()) if self.home[q] == number and elements(q) == part.rows]
        return any(all(elements(k) == elements(cls) for k in those) for those in own)

    def _widen(self, cls: int, part: MaximalPart) -> None:
        """Update a part's sizes for a class that joins."""
        size = self.values.groups.facts.elements(cls)
        if self.values.reduces(cls):
            rows, depth, _ = part.extent = self.values.extent(cls)
            if part.rows not in (rows, rows * depth, *part.wide):
                part.wide = {part.rows}
            part.rows, part.depth = rows, depth
        elif self.values.unrolled:
            sizes = {size, *part.sizes()}
            part.rows = min(sizes)
            part.wide = sizes - {part.rows}
        elif size not in part.sizes():
            part.wide, part.rows = {part.rows}, size

    def _depends(self, sources: Iterable[int], goal: int) -> bool:
        """Whether part `goal` depends on one of the parts `sources`."""
        return any(self.later[n] >> goal & 1 for n in sources)

    def _add_dependency(self, number: int, users: set[int]) -> None:
        """Record that the parts `users` depend on part `number`."""
        self.parts[number].after |= users
        new = reduce(or_, (self.later[u] | 1 << u for u in users), 0)
        if new & ~self.later[number]:
            self.later[number] |= new
            for n, later in enumerate(self.later):
                if later >> number & 1:
                    self.later[n] |= new
