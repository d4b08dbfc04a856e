"""Exact search from seam to seam: for kernel covers of deep models, whose layers join through a few values.

Classes are resolved in an order that keeps few of them open at a time: components of classes that read each other are
resolved together, and a root only when what it reads is open anyway (it is needed in any case, so it may wait at no cost).
A label is the set of classes still needed. The order is cut where few classes are open; between two seams the labels depend
on the piece and on the labels that enter it alone, so that equal layers are searched once. Costs are counted in whole units,
far finer than any tolerance: by floats no two layers would be equal.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
import numpy.typing as npt

from .frontier import Cover, bits_of
from .parts import colours
from .problem import Rows
from .scc import components

OPEN = 96
"""With more classes open at a time the search would not end."""

LOOKS = 500_000
"""Most comparisons for finding an order."""

SEAM = 16
APART = 6
"""A seam has at most so many open classes, and none within so many steps has fewer."""

UNITS = 2.0**46
"""All costs together are at most so many units: sums are exact in 64 bits, and what is cut off the costs is 1e-11 of them
for a thousand classes. A unit is a power of two: of whole numbers nothing is cut off."""

TOO_DEAR = 2 * int(UNITS)
"""Units of a row that alone costs more than a known solution."""

SURE = 1e-8
"""Relative difference of cost and bound up to which a result counts as proved."""

WAYS = 2_000
"""Most ways to make what is needed of one component."""

WIDTH = 5_000
LABELS = 1_500_000
NARROW = 40
"""Most labels that wait for the same class, and most in all. With more nothing is proved any more, and the search goes on as
a beam of so few."""

MEMORY, LABEL_BYTES = 512 << 20, 200
"""Bytes that labels may take, of which the same holds; those of one beside its set of classes. A problem for which the rows and the
beam alone would take more is not searched so."""

DEAR = 10
"""A beam compares labels only among the cheapest, so many times as it keeps."""

LATE = 1.5
TRIAL = 40
"""A beam gives up where after so many classes it looks as if it took so many times what is left of the time."""

PROOF_SHARE = 0.75
"""Share of the time after which it becomes one in any case."""

CROWD = 24
CHAMPIONS = 400
"""From so many labels on those are looked for that another one beats, by comparison with that many of the cheapest."""

Move = tuple[int, int, tuple[tuple[int, int], ...]]  # units, what it reads, (member, number among its rows) chosen
Label = tuple[int, int, "Move | None"]  # units so far, the label it came from, what was done there
Labels = dict[int, int]  # needed classes -> units


@dataclass
class Order:
    """Components in the order in which they are resolved, and the classes that are open after each, roots aside."""

    groups: list[list[int]]
    open: list[list[int]]


def narrow_order(rows: Rows, kind: Sequence[tuple[int, ...]]) -> Order | None:
    """An order, readers first, that opens few classes at a time (greedily); None if too many are open somewhere. Among
    equals the `kind` of classes decides, so that equal layers are ordered alike."""
    return _Ordering(rows, kind).run()


class _Ordering:
    """Groups are the components of classes that read each other. `fresh`: how many classes resolving a group would open;
    `waiting`: how many groups that read it come first; `opened`: classes that are open, and since which step."""

    def __init__(self, rows: Rows, kind: Sequence[tuple[int, ...]]) -> None:
        below: list[set[int]] = [set() for _ in range(rows.n_classes)]
        for c, kids in zip(rows.cls, rows.kids):
            below[c].update(kids)
        self.of, members = components(below)
        self.members = [sorted(group, key=lambda c: (kind[c], c)) for group in members]
        self.kinds = [tuple([kind[c] for c in group]) for group in self.members]
        self.roots = set(rows.roots)
        self.reads = [sorted({k for c in group for k in below[c]}.difference(group)) for group in members]
        self.readers: list[list[int]] = [[] for _ in range(rows.n_classes)]
        self.waiting = [0] * len(members)
        self.height = [0] * len(members)
        for g, needs in enumerate(self.reads):
            for k in needs:
                self.readers[k].append(g)
                self.height[g] = max(self.height[g], 1 + self.height[self.of[k]])
            for h in {self.of[k] for k in needs}:
                self.waiting[h] += 1
        self.fresh = [sum([k not in self.roots for k in kids]) for kids in self.reads]
        self.steps: list[list[int]] = [[] for _ in members]  # at which steps its readers were resolved
        self.known: set[int] = set()
        self.opened: dict[int, int] = {}
        self.ready: set[int] = set()
        self.idle: list[tuple[int, Any, int]] = []  # roots that would open classes: they may wait
        self.begun: set[int] = set()  # those that read open classes
        self.looks = 0
        self.done = bytearray(len(members))

    def run(self) -> Order | None:
        """See `narrow_order`."""
        order = Order([], [])
        for g, left in enumerate(self.waiting):
            if not left:
                self._admit(g)
        while (g := self._next()) >= 0:
            self._resolve(g, len(order.groups))
            if len(self.opened) > OPEN or self.looks > LOOKS:
                return None
            order.groups.append(self.members[g])
            order.open.append(list(self.opened))
        return order

    def _admit(self, g: int) -> None:
        if not self.fresh[g] or any(c in self.opened for c in self.members[g]):
            self.ready.add(g)
        else:
            heapq.heappush(self.idle, (-self.height[g], self.kinds[g], g))
            if any(k in self.opened for k in self.reads[g]):
                self.begun.add(g)

    def _next(self) -> int:
        for some in (self.ready, self.begun):
            if some:
                self.looks += len(some)
                g = min(some, key=self._rank)
                some.discard(g)
                return g
        while self.idle:
            g = heapq.heappop(self.idle)[-1]
            if not self.done[g]:
                return g
        return -1

    def _rank(self, g: int) -> tuple[Any, ...]:
        since = [self.opened[c] for c in self.members[g] if c in self.opened]
        more = self.fresh[g] - len(since)
        return more, -self.height[g], -max(since, default=0), self.kinds[g], self.steps[g], g

    def _resolve(self, g: int, step: int) -> None:
        self.done[g] = 1
        for k in self.reads[g]:
            if k in self.known or k in self.roots:
                continue
            self.known.add(k)
            self.opened[k] = step
            for h in self.readers[k]:
                self.fresh[h] -= 1
                if not self.waiting[h] and not self.done[h] and h not in self.ready:
                    self.begun.add(h)
                    if not self.fresh[h]:  # a root that opens nothing any more
                        self.begun.discard(h)
                        self.ready.add(h)
        for c in self.members[g]:
            self.opened.pop(c, None)
        for h in {self.of[k] for k in self.reads[g]}:
            self.waiting[h] -= 1
            self.steps[h].append(-step)
            if not self.waiting[h]:
                self._admit(h)


@dataclass(eq=False)
class Piece:
    """What lies between two seams, in numbers of its own: bits 0..after-1 are the classes open at its end, then come its own
    classes, the first ones to be resolved last. `rows[b]`: what each row of the class with bit b costs and reads.
    `groups[b]`: the bits resolved together with b. `roots`: its own classes that are needed in any case."""

    after: int
    rows: dict[int, list[tuple[int, int]]]
    groups: dict[int, int]
    roots: int
    _moves: dict[int, list[Move] | None] = field(default_factory=dict)

    def moves(self, needed: int) -> list[Move]:
        """Ways to make some needed classes of one component, none of which another one beats; OverflowError if there are
        too many."""
        found = self._moves.get(needed)
        if found is None:
            found = self._moves[needed] = self._ways(needed)
        return found

    def _ways(self, needed: int) -> list[Move]:
        inside = self.groups[needed.bit_length() - 1]
        ways: list[Move] = []
        tried = 0
        stack: list[tuple[int, int, int, tuple[tuple[int, int], ...]]] = [(needed, 0, 0, ())]
        while stack:
            todo, cost, reads, chosen = stack.pop()
            if not todo:
                if len(chosen) == 1 or _acyclic({b: self.rows[b][n][1] & inside for b, n in chosen}):
                    ways.append((cost, reads, chosen))
                continue
            b = todo.bit_length() - 1
            made = sum([1 << m for m, _ in chosen]) | 1 << b
            for n, (price, kids) in enumerate(self.rows[b]):
                tried += 1
                if not kids >> b & 1:
                    stack.append(
                        ((todo | kids & inside) & ~made, cost + price, reads | kids & ~inside, (*chosen, (b, n)))
                    )
            if tried > WAYS:
                raise OverflowError("too many ways through a component")
        kept: list[Move] = []
        for way in sorted(ways, key=lambda w: (w[0], w[1].bit_count(), w[1], w[2])):
            if not any(not other[1] & ~way[1] for other in kept):
                kept.append(way)
        return kept


def _acyclic(reads: dict[int, int]) -> bool:
    """Whether classes (bits) that read each other can be made one after another."""
    left = dict(reads)
    while left:
        open_ = sum([1 << b for b in left])
        free = [b for b, kids in left.items() if not kids & open_]
        if not free:
            return False
        for b in free:
            del left[b]
    return True


@dataclass
class Passage:
    """One search of a piece: the labels that leave it, and how each came about."""

    leave: Labels
    buckets: list[dict[int, Label]]

    def trace(self, mask: int) -> tuple[int, list[tuple[int, int]]]:
        """The label that a leaving one came in as, and the rows chosen on its way."""
        chosen: list[tuple[int, int]] = []
        _, before, move = self.buckets[0][mask]
        while move is not None:
            chosen += move[2]
            mask = before
            _, before, move = self.buckets[mask.bit_length()][mask]
        return mask, chosen


class Seams:
    """A problem prepared for the search; `fits` says whether few enough classes are open at a time. `upper` is what a known
    solution costs."""

    def __init__(self, rows: Rows, upper: float) -> None:
        self.rows, self.upper = rows, upper
        self.scale = 2.0 ** math.floor(math.log2(UNITS / max(upper, 1e-290)))
        top = upper * (1 + 1e-9)
        self.units = [round(cost * self.scale) if cost <= top else TOO_DEAR for cost in rows.cost]
        self.exact = all(n == cost * self.scale for n, cost in zip(self.units, rows.cost) if cost <= top)
        order = narrow_order(rows, colours(rows, self.units))
        self.fits = order is not None
        if order is None:
            return
        self.pieces: list[Piece] = []
        self.enter: list[list[int]] = []  # per piece: the bit of each class that was open before it
        self.names: list[dict[int, list[int]]] = []  # per piece and bit: the rows that its rows are
        self._known: dict[object, Piece] = {}
        self._place = {c: -n for n, c in enumerate(c for group in order.groups for c in group)}
        self._roots = set(rows.roots)
        before: list[int] = []
        first = 0
        cuts = _cuts([len(o) for o in order.open])
        self.fits = self._bytes(order, cuts) <= MEMORY
        for last in cuts if self.fits else ():
            before = self._cut(order.groups[first : last + 1], before, order.open[last])
            first = last + 1

    def _bytes(self, order: Order, cuts: Sequence[int]) -> int:
        """Bytes that the narrowest search takes: sets of classes, as wide as a piece, for its rows and NARROW labels a class."""
        total = first = 0
        for last in cuts:
            classes = [c for group in order.groups[first : last + 1] for c in group]
            sets = sum([len(self.rows.members[c]) for c in classes]) + NARROW * len(classes)
            total += sets * (len(classes) // 8 + LABEL_BYTES)
            first = last + 1
        return total

    def _cut(self, groups: list[list[int]], before: list[int], open_: list[int]) -> list[int]:
        """Append the piece of some groups; the classes open after it, as they are numbered."""
        rows, place = self.rows, self._place
        after = sorted(open_, key=place.__getitem__)
        own = [c for group in reversed(groups) for c in reversed(group)]
        bit = {c: n for n, c in enumerate([*after, *own])}
        table: dict[int, list[tuple[int, int]]] = {}
        names: dict[int, list[int]] = {}
        for c in own:
            entries = sorted(
                (self.units[r], sum([1 << bit[k] for k in rows.kids[r] if k in bit]), rows.cost[r], r)
                for r in rows.members[c]
            )
            table[bit[c]] = [(cost, kids) for cost, kids, *_ in entries]
            names[bit[c]] = [r for *_, r in entries]
        whole = [sum([1 << bit[d] for d in group]) for group in groups]
        together = {bit[c]: mask for group, mask in zip(groups, whole) for c in group}
        always = sum([1 << bit[c] for c in own if c in self._roots])
        key = (len(after), always, *map(tuple, table.values()), *together.values())
        piece = self._known.setdefault(key, Piece(len(after), table, together, always))
        self.pieces.append(piece)
        self.enter.append([bit[c] for c in before])
        self.names.append(names)
        return after

    def search(
        self, width: int = WIDTH, *, deadline: float = math.inf, stop: Callable[[], bool] | None = None
    ) -> Cover:
        """The cheapest rows, and whether that is proved: no label was dropped, because more than `width` waited for one
        class, there were too many in all, or most of the time to `deadline` (on time.perf_counter()) was over. Without a
        solution if `stop` says so, the time is over, or a component can be passed in too many ways."""
        began = time.perf_counter()
        steps = sum([len(piece.rows) for piece in self.pieces])
        run = _Run(width, began + PROOF_SHARE * (deadline - began), deadline, stop, steps)
        labels: Labels = {0: 0}
        spent = 0
        passages: list[tuple[Passage, dict[int, int]]] = []
        known: dict[tuple[Piece, frozenset[tuple[int, int]]], Passage] = {}
        for piece, enter in zip(self.pieces, self.enter):
            if not labels:  # some class cannot be made
                break
            least = min(labels.values())
            entering = {_moved(mask, enter) | piece.roots: mask for mask in labels}
            inner = {new: labels[mask] - least for new, mask in entering.items()}
            key = piece, frozenset(inner.items())
            if key not in known:
                try:
                    known[key] = run.through(piece, inner)
                except (TimeoutError, OverflowError):
                    return Cover(None, math.inf, 0.0, False, run.labels)
            else:
                run.left -= len(piece.rows)
            spent += least
            labels = known[key].leave
            passages.append((known[key], entering))
        if not labels:
            return Cover(None, math.inf, 0.0, False, run.labels)
        (units,) = labels.values()
        chosen = self._trace(passages)
        cost = self.rows.total(chosen)
        lower = 0.0
        if run.whole:  # each class that is made may cost half a unit less than counted, if units are no whole numbers
            rounded = 0.0 if self.exact else 0.51 * self.rows.n_classes
            lower = max(0.0, min((spent + units - rounded) / self.scale, cost, self.upper))
        return Cover(chosen, cost, lower, run.whole and cost - lower <= SURE * cost, run.labels)

    def _trace(self, passages: Sequence[tuple[Passage, dict[int, int]]]) -> list[int]:
        chosen: list[int] = []
        mask = 0
        for (passage, entering), names in zip(reversed(passages), reversed(self.names)):
            inner, picked = passage.trace(mask)
            chosen += [names[b][n] for b, n in picked]
            mask = entering[inner]
        choice = [-1] * self.rows.n_classes
        for r in chosen:
            choice[self.rows.cls[r]] = r
        walked = self.rows.walk(choice)
        assert walked is not None  # every class that a chosen row reads was needed below it
        return walked


def _cuts(widths: Sequence[int]) -> list[int]:
    """Steps after which the order is cut: the narrowest around, the first of equals; and the last one."""
    found: list[int] = []
    for n, width in enumerate(widths[:-1]):
        near = widths[max(0, n - APART) : n + APART + 1]
        if width <= SEAM and width <= min(near) and (not found or n - found[-1] > APART):
            found.append(n)
    return [*found, len(widths) - 1] if widths else []


def _moved(mask: int, places: Sequence[int]) -> int:
    return sum([1 << places[b] for b in bits_of(mask)])


@dataclass
class _Run:
    """One search: how wide it is, and how far it came. `left`: classes that are still to be resolved. `whole`: no label was
    dropped; else `since`: when that began to be so, and what was left then."""

    width: int
    hurry: float
    deadline: float
    stop: Callable[[], bool] | None
    left: int
    labels: int = 0
    whole: bool = True
    since: tuple[float, int] | None = None
    bits: int = 0  # classes of the piece under way: the width of a label
    bytes: int = 0  # of all labels so far

    def through(self, piece: Piece, labels: Labels) -> Passage:
        """All ways through a piece. TimeoutError once the time is over or `stop` says so; OverflowError if a component has
        too many ways."""
        self.bits = top = piece.after + len(piece.rows)
        buckets: list[dict[int, Label]] = [
            {} for _ in range(top + 1)
        ]  # by highest bit + 1; what leaves is in the first
        at = [buckets[0]] * (piece.after + 1) + buckets[piece.after + 1 :]  # by length of the label
        for mask, cost in labels.items():
            at[mask.bit_length()][mask] = (cost, mask, None)
        for b in range(top - 1, piece.after - 1, -1):
            self.left -= 1
            if buckets[b + 1]:
                buckets[b + 1] = self._fewer(buckets[b + 1])
                _resolve(piece, b, buckets[b + 1], at)
        buckets[0] = self._fewer(buckets[0])
        return Passage({mask: label[0] for mask, label in buckets[0].items()}, buckets)

    def _fewer(self, bucket: dict[int, Label]) -> dict[int, Label]:
        now = time.perf_counter()
        if now > self.deadline or (self.stop is not None and self.stop()):
            raise TimeoutError
        wide = self.whole and now < self.hurry and self.labels < LABELS and self.bytes < MEMORY
        narrow = min(self.width, NARROW)
        if not wide:
            self._keep_pace(now)
            bucket = self._cheapest(bucket, DEAR * narrow)
        if len(bucket) > CROWD:
            bucket = _unbeaten(bucket)
        if len(bucket) > (self.width if wide else narrow):
            bucket = self._cheapest(bucket, narrow)
        self.labels += len(bucket)
        self.bytes += len(bucket) * (self.bits // 8 + LABEL_BYTES)
        return bucket

    def _keep_pace(self, now: float) -> None:
        """TimeoutError if the beam would not end in time."""
        if self.since is None:
            self.since = now, self.left
        began, left = self.since
        done = left - self.left
        if done > TRIAL and (now - began) * self.left > LATE * (self.deadline - now) * done:
            raise TimeoutError

    def _cheapest(self, bucket: dict[int, Label], most: int) -> dict[int, Label]:
        if len(bucket) <= most:
            return bucket
        self.whole = False
        return dict(heapq.nsmallest(most, bucket.items(), key=lambda item: item[1][0]))


def _resolve(piece: Piece, b: int, bucket: dict[int, Label], at: Sequence[dict[int, Label]]) -> None:
    """Make what each label that waits for b needs of b's component; `at`: the buckets by the length of labels."""
    inside = piece.groups[b]
    alone = inside == 1 << b
    moves = piece.moves(inside) if alone else []
    for mask, (cost, _, _) in bucket.items():
        if alone:
            rest = mask ^ inside
        else:
            needed = mask & inside
            rest = mask ^ needed
            moves = piece.moves(needed)
        for move in moves:
            new = rest | move[1]
            total = cost + move[0]
            target = at[new.bit_length()]
            known = target.get(new)
            if known is None or total < known[0]:
                target[new] = (total, mask, move)


def _unbeaten(bucket: dict[int, Label]) -> dict[int, Label]:
    """Labels without those that need all that a label no dearer than them needs."""
    masks = sorted(bucket, key=lambda mask: bucket[mask][0])
    varying = bits_of(reduce(or_, masks) ^ reduce(and_, masks))
    if len(varying) > 64:
        return bucket
    bits = _packed(masks, varying)
    kept = np.ones(len(masks), bool)
    champions = 0
    for n in range(len(masks)):
        if kept[n]:
            champions += 1
            if champions > CHAMPIONS:
                break
            beaten = (bits[n] & ~bits[n + 1 :]) == 0
            kept[n + 1 :] &= ~beaten
    return {masks[n]: bucket[masks[n]] for n in np.flatnonzero(kept).tolist()}


def _packed(masks: Iterable[int], varying: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Masks as 64-bit words of those bits alone."""
    low = varying[0] if varying else 0
    size = ((varying[-1] if varying else 0) - low) // 8 + 1
    keep = (1 << 8 * size) - 1
    raw = b"".join([((m >> low) & keep).to_bytes(size, "little") for m in masks])
    bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, size), axis=1, bitorder="little")
    picked = bits[:, [v - low for v in varying]].astype(np.uint64)
    return picked @ (np.uint64(1) << np.arange(len(varying), dtype=np.uint64))
