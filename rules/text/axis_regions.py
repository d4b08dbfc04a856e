"""Divides the axes of a rule's terms into regions: cuts at concat and split positions, propagated to all aligned
axes."""

from __future__ import annotations

from itertools import combinations, pairwise

from .linear_equations import Affine, quotient
from .shape_families import Typing
from .signs import Open, Signs, Unprovable
from .terms import TermAxis, Typed

PLACES = 16  # limit on cuts per axis


class Regions:
    """Positions at which axes are cut (concat, split), propagated to all axes that ops index alike.

    A *cut* is such a position; two axes are *aligned* if an op reads both at the same index. `places`: cuts of each
    axis.
    """

    def __init__(self, typing: Typing, signs: Signs) -> None:
        self.signs = signs
        self.places: dict[TermAxis, list[Affine]] = {}
        self.aligned: list[tuple[TermAxis, TermAxis]] = []
        self.copies: list[tuple[TermAxis, TermAxis, int]] = []
        self.framed: list[tuple[TermAxis, TermAxis, Affine]] = []  # (axis, axis inside of it, start of the inner axis)
        self.seen: set[int] = set()
        for term in typing.terms:
            self.visit(term)
        for left, right in typing.pairs:
            self.aligned += zip(left.axes, right.axes)
        self.close()

    def visit(self, term: Typed) -> None:
        """Record the axes of a term after those of its operands, and how they relate.

        `aligned` gets pairs of axes that the op indexes alike, `copies` (an axis, an axis whose elements it repeats,
        how often), `framed` (an axis, an axis that is a part of it, start of that part).
        """
        if id(term) in self.seen:
            return
        self.seen.add(id(term))
        for a in term.args:
            self.visit(a)
        for axis in term.axes:
            self.axis(axis)
        axes = [a.axes for a in term.args]
        if term.op == "matmul":
            self.aligned += [(axes[0][-1], axes[1][-2])]
        elif term.op in ("Iconv", "Cpool", "Imatmul"):
            self.aligned += [(term.axes[0], term.axes[1])]
        elif term.op == "batchnorm":
            self.aligned += [(axes[0][1], a[0]) for a in axes[1:]]
        elif term.op == "conv2d":
            groups = term.params["groups"]
            self.copies.append((axes[0][1], axes[1][1], groups))
            for j in range(1, groups):
                self.add(term.axes[1], axes[1][0].size * quotient(j, groups))
        elif term.op == "merge":
            n = term.params["count"]
            self.copies.append((term.axes[1], axes[0][1], n))
            for j in range(1, n):
                self.add(term.axes[0], term.axes[0].size * quotient(j, n))
        elif term.op == "enlarge":
            for i, low in enumerate(enlarged(term)):
                self.framed.append((term.axes[2 + i], axes[0][2 + i], low))

    def axis(self, axis: TermAxis) -> None:
        """Register an axis and the parts that it is concatenated from."""
        if axis in self.places:
            return
        self.places[axis] = []
        for part in (*(axis.cut or ()), *axis.same):
            self.axis(part)

    def add(self, axis: TermAxis, place: Affine) -> bool:
        """Cut an axis at a position; returns whether the cut is new. Raises Unprovable for too many cuts."""
        self.axis(axis)
        place = self.signs.reduce(place)
        if place in self.places[axis] or self.signs.nonnegative(place * -1):
            return False
        if self.signs.nonnegative(place - axis.size):
            return False
        if len(self.places[axis]) == PLACES:
            raise Unprovable("too many cuts of an axis")
        self.places[axis].append(place)
        return True

    def close(self) -> None:
        """Propagate cuts between aligned axes until none is new."""
        changed = True
        while changed:
            new = [self.carry(*pair) for pair in self.aligned]
            new += [self.repeat(*item) for item in self.copies]
            new += [self.frame(*item) for item in self.framed]
            for axis in list(self.places):
                new += [self.carry(axis, other) for other in axis.same]
                new.append(axis.cut is not None and self.inherit(axis, *axis.cut))
            changed = any(new)

    def carry(self, a: TermAxis, b: TermAxis) -> bool:
        """Make the cuts of each of two aligned axes cuts of the other, too; returns whether any cut is new."""
        return any([*(self.add(b, p) for p in list(self.places[a])), *(self.add(a, p) for p in list(self.places[b]))])

    def inherit(self, whole: TermAxis, left: TermAxis, right: TermAxis) -> bool:
        """Copy cuts between a concatenated axis and its two parts, in both directions; returns whether any cut is new.

        Raises Open if the order of cuts is not provable.
        """
        new = [self.add(whole, left.size), *(self.add(whole, p) for p in list(self.places[left]))]
        new += [self.add(whole, left.size + p) for p in list(self.places[right])]
        for p in list(self.places[whole]):
            if self.signs.nonnegative(left.size - p):
                new.append(self.add(left, p))
            elif self.signs.nonnegative(p - left.size):
                new.append(self.add(right, p - left.size))
            else:
                raise Open(p, left.size)
        return any(new)

    def frame(self, whole: TermAxis, part: TermAxis, start: Affine) -> bool:
        """Exchange cuts between the axis `whole` and the axis `part`, which lies inside it from `start` on; the borders
        become cuts if `part` has any.

        Returns whether any cut is new.
        """
        inside = [p for p in self.places[whole] if self.signs.nonnegative(p - start - 1)]
        new = [self.add(part, p - start) for p in inside if self.signs.nonnegative(start + part.size - p - 1)]
        cuts = [start, start + part.size, *(start + p for p in self.places[part])] if self.places[part] else []
        return any([*new, *(self.add(whole, p) for p in cuts)])

    def repeat(self, whole: TermAxis, part: TermAxis, times: int) -> bool:
        """Give the axis `whole`, which is `times` copies of the axis `part` in a row, the cuts of `part` in each copy
        and at the ends of copies, and `part` the cuts of `whole`; returns whether any cut is new.

        Raises Open or Unprovable if the order of two cuts is not provable.
        """
        new = [self.add(whole, part.size * j) for j in range(1, times)]
        new += [self.add(whole, part.size * j + p) for j in range(times) for p in list(self.places[part])]
        for p in list(self.places[whole]):
            for j in range(times):
                if self.signs.nonnegative(p - part.size * j) and self.signs.nonnegative(part.size * (j + 1) - p):
                    new.append(self.add(part, p - part.size * j))
                    break
            else:
                border = next((b for j in range(1, times) if not self.ordered(p, b := part.size * j)), None)
                raise Open(p, border) if border is not None else Unprovable("a cut outside of all groups")
        return any(new)

    def ordered(self, p: Affine, q: Affine) -> bool:
        """Whether p <= q or q <= p is provable for the positions `p` and `q` (affine expressions of sizes)."""
        return self.signs.nonnegative(q - p) or self.signs.nonnegative(p - q)

    def of(self, axis: TermAxis) -> list[tuple[Affine, Affine]]:
        """Regions of an axis as (start, size), in order; raises Open if the order of two cuts depends on the sizes."""
        places = [Affine.of(0)]
        rest = list(self.places[axis])
        while rest:
            first = next((p for p in rest if all(self.signs.nonnegative(q - p) for q in rest)), None)
            if first is None:
                p, q = next((p, q) for p, q in combinations(rest, 2) if not self.ordered(p, q))
                raise Open(p, q)
            rest.remove(first)
            places.append(first)
        places.append(self.signs.reduce(axis.size))
        return [(a, self.signs.reduce(b - a)) for a, b in pairwise(places)]


def enlarged(term: Typed) -> list[Affine]:
    """For each spatial axis, the number of zeros that `enlarge` puts before a convolution kernel."""
    return [term.numbers["before_" + i] for i in "hw"]


__all__ = ["Regions", "enlarged"]
