"""Frontier DP: exact search for kernel covers of deep models, whose layers are joined by few values.

Classes are resolved in an order with few open classes (needed and not yet resolved) at any time. The classes of a
strongly connected component are resolved together; a root is resolved only when its children are open anyway (it is
needed in any case, so it can wait at no cost). A label is a set of needed classes. The order is cut where few
classes are open. Inside a piece between two cuts, the labels depend only on the piece and on its entering labels, so
equal layers are searched once. Costs are integers in units far finer than any tolerance: rounding of floats would make
equal layers differ."""

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

from ..model.scc import strongly_connected_components
from .components import colours
from .label_setting import LabelSearchResult, bits_of
from .problem import ProblemRows

MAX_OPEN_CLASSES = 96
"""Largest number of open classes for which the search is attempted."""

MAX_ORDER_COMPARISONS = 500_000
"""Largest number of comparisons for finding an order."""

MIN_CUT_DISTANCE = 6
"""A cut of the order is a step with no more open classes than any other within MIN_CUT_DISTANCE."""

COST_UNITS = 2.0**46
"""Upper limit of all costs together in integer units: sums are exact in 64 bits, and rounding loses 1e-11 of the cost
for a thousand classes. A unit is a power of two: integer costs are exact."""

EXCLUDED_UNITS = 2 * int(COST_UNITS)
"""Units of a row that alone exceeds the cost of a known solution."""

PROVED_GAP = 1e-8
"""Relative difference of cost and bound up to which a result counts as proved."""

MAX_DERIVATIONS = 2_000
"""Largest number of derivations enumerated for the needed classes of one component."""

MAX_EXACT_WIDTH = 20_000
MAX_EXACT_LABELS = 1_500_000
BEAM_WIDTH = 40
"""Exact mode: largest number of labels waiting for one class, and in total. Beyond these limits the search continues as
a beam of width BEAM_WIDTH, without a proof."""

MAX_LABEL_BYTES, LABEL_OVERHEAD_BYTES = 512 << 20, 200
"""Memory limit in bytes of labels, beyond which the search is a beam; bytes per label beside its bitset. Problems whose
rows and beam alone exceed MAX_LABEL_BYTES are not searched."""

BEAM_DOMINANCE_FACTOR = 10
"""A beam tests dominance only among its cheapest labels, this many times its width."""

MAX_OVERTIME_RATIO = 1.5
MIN_CLASSES_TO_EXTRAPOLATE = 40
"""A beam gives up if, after MIN_CLASSES_TO_EXTRAPOLATE classes, its extrapolated time exceeds MAX_OVERTIME_RATIO times
the remaining time."""

PROOF_SHARE = 0.75
"""Share of the time after which the search becomes a beam."""

MIN_LABELS_TO_FILTER = 24
MAX_DOMINATING_LABELS = 400
FEW_LABELS = 64
"""Buckets of more than MIN_LABELS_TO_FILTER labels are filtered by dominance, against at most MAX_DOMINATING_LABELS of
the cheapest labels. Where at most FEW_LABELS are kept, they are compared one by one, without packing the others."""

Move = tuple[int, int, tuple[tuple[int, int], ...]]  # (units, classes read, chosen (member, row index) pairs)
Label = tuple[int, int, "Move | None"]  # (units so far, predecessor label, move)
Labels = dict[int, int]  # needed classes -> units


@dataclass
class ResolutionOrder:
    """Order in which components of a problem are resolved, and the open classes (without roots) after each."""

    groups: list[list[int]]
    open: list[list[int]]


def narrow_order(rows: ProblemRows, kind: Sequence[tuple[int, ...]]) -> ResolutionOrder | None:
    """Resolution order, parents first, with few open classes (greedy); None if the limit MAX_OPEN_CLASSES is exceeded.

    Ties are broken by the `kind` (colours) of classes, so that equal layers get equal orders.
    """
    return _Ordering(rows, kind).run()


class _Ordering:
    """Greedy ordering of components (groups).

    `fresh`: number of classes that resolving a group would open; `waiting`: number of unresolved groups that read it;
    `opened`: open class -> step at which it was opened.
    """

    def __init__(self, rows: ProblemRows, kind: Sequence[tuple[int, ...]]) -> None:
        below: list[set[int]] = [set() for _ in range(rows.n_classes)]
        for c, kids in zip(rows.cls, rows.kids):
            below[c].update(kids)
        self.of, members = strongly_connected_components(below)
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
        self.steps: list[list[int]] = [[] for _ in members]  # steps at which its readers were resolved
        self.known: set[int] = set()
        self.opened: dict[int, int] = {}
        self.ready: set[int] = set()
        self.idle: list[tuple[int, Any, int]] = []  # heap of roots that would open classes
        self.begun: set[int] = set()  # groups that read open classes
        self.looks = 0
        self.done = bytearray(len(members))

    def run(self) -> ResolutionOrder | None:
        """The resolution order; None if more than MAX_OPEN_CLASSES classes would be open (`narrow_order`)."""
        order = ResolutionOrder([], [])
        for g, left in enumerate(self.waiting):
            if not left:
                self._admit(g)
        while (g := self._next()) >= 0:
            self._resolve(g, len(order.groups))
            if len(self.opened) > MAX_OPEN_CLASSES or self.looks > MAX_ORDER_COMPARISONS:
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
                    if not self.fresh[h]:  # a root that opens no further class
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
class FrontierPiece:
    """Subproblem between two cuts of the resolution order, with local bit numbers.

    Bits 0..after-1 are the classes open at its end, the following bits its own classes, in reverse order of resolution.
    `rows[b]`: (cost, classes read as bits) of each row of the class with bit b. `groups[b]`: mask of the component of
    b. `roots`: mask of own classes that are always needed.
    """

    after: int
    rows: dict[int, list[tuple[int, int]]]
    groups: dict[int, int]
    roots: int
    _moves: dict[int, list[Move] | None] = field(default_factory=dict)

    def moves(self, needed: int) -> list[Move]:
        """Pareto-optimal ways to derive given needed classes of one component.

        Raises OverflowError if there are more than MAX_DERIVATIONS.
        """
        found = self._moves.get(needed)
        if found is None:
            found = self._moves[needed] = self._derivations(needed)
        return found

    def _derivations(self, needed: int) -> list[Move]:
        top = needed.bit_length() - 1
        inside = self.groups[top]
        if inside == needed and not needed & (needed - 1) and len(self.rows[top]) <= MAX_DERIVATIONS:
            return _pareto(
                [(cost, kids, ((top, n),)) for n, (cost, kids) in enumerate(self.rows[top]) if not kids & inside]
            )
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
            if tried > MAX_DERIVATIONS:
                raise OverflowError("too many ways through a component")
        return _pareto(ways)


def _pareto(ways: list[Move]) -> list[Move]:
    """Moves, cheapest first, without those that read all that an earlier one reads."""
    if len(ways) < 2:
        return ways
    kept: list[Move] = []
    for way in sorted(ways, key=lambda w: (w[0], w[1].bit_count(), w[1], w[2])):
        beyond = ~way[1]
        for other in kept:
            if not other[1] & beyond:
                break
        else:
            kept.append(way)
    return kept


def _acyclic(reads: dict[int, int]) -> bool:
    """Whether chosen rows of one component (bit -> bits read) are acyclic."""
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
class PieceLabels:
    """Result of searching a piece: the labels at its end, and the buckets for tracing back."""

    leave: Labels
    buckets: list[dict[int, Label]]

    def trace(self, mask: int) -> tuple[int, list[tuple[int, int]]]:
        """Derivation of a label at the piece's end: (label at its beginning, (bit, row index) pairs chosen on the
        way)."""
        chosen: list[tuple[int, int]] = []
        _, before, move = self.buckets[0][mask]
        while move is not None:
            chosen += move[2]
            mask = before
            _, before, move = self.buckets[mask.bit_length()][mask]
        return mask, chosen


class FrontierDP:
    """Frontier DP of a problem. `fits`: whether order and memory are narrow enough. `upper`: cost of a known
    solution."""

    def __init__(self, rows: ProblemRows, upper: float) -> None:
        self.rows, self.upper = rows, upper
        self.scale = 2.0 ** math.floor(math.log2(COST_UNITS / max(upper, 1e-290)))
        top = upper * (1 + 1e-9)
        self.units = [round(cost * self.scale) if cost <= top else EXCLUDED_UNITS for cost in rows.cost]
        self.exact = all(n == cost * self.scale for n, cost in zip(self.units, rows.cost) if cost <= top)
        order = narrow_order(rows, colours(rows, self.units))
        self.fits = order is not None
        if order is None:
            return
        self.pieces: list[FrontierPiece] = []
        self.enter: list[list[int]] = []  # per piece: bit of each class that was open before the piece
        self.names: list[dict[int, list[int]]] = []  # per piece and bit: row indices of the problem
        self._known: dict[object, FrontierPiece] = {}
        self._place = {c: -n for n, c in enumerate(c for group in order.groups for c in group)}
        self._roots = set(rows.roots)
        before: list[int] = []
        first = 0
        cuts = _cuts([len(o) for o in order.open])
        fixed, each = self._bytes(order, cuts)
        self.widest = (MAX_LABEL_BYTES - fixed) // each  # width of the widest beam that fits into memory
        self.fits = self.widest >= BEAM_WIDTH
        for last in cuts if self.fits else ():
            before = self._append_piece(order.groups[first : last + 1], before, order.open[last])
            first = last + 1

    def _bytes(self, order: ResolutionOrder, cuts: Sequence[int]) -> tuple[int, int]:
        """Estimated bytes of the rows of all pieces, and of one label per class: bitsets as wide as a piece."""
        fixed = each = first = 0
        for last in cuts:
            classes = [c for group in order.groups[first : last + 1] for c in group]
            bitset = len(classes) // 8 + LABEL_OVERHEAD_BYTES
            fixed += sum([len(self.rows.members[c]) for c in classes]) * bitset
            each += len(classes) * bitset
            first = last + 1
        return fixed, max(each, 1)

    def _append_piece(self, groups: list[list[int]], before: list[int], open_: list[int]) -> list[int]:
        """Append the piece of some groups; returns the classes open after it, in bit order."""
        rows, place = self.rows, self._place
        after = sorted(open_, key=place.__getitem__)
        own = [c for group in reversed(groups) for c in reversed(group)]
        bit = {c: n for n, c in enumerate([*after, *own])}
        one = {c: 1 << n for c, n in bit.items()}
        table: dict[int, list[tuple[int, int]]] = {}
        names: dict[int, list[int]] = {}
        for c in own:
            entries = sorted(
                [
                    (self.units[r], sum([one[k] for k in rows.kids[r] if k in one]), rows.cost[r], r)
                    for r in rows.members[c]
                ]
            )
            table[bit[c]] = [(cost, kids) for cost, kids, *_ in entries]
            names[bit[c]] = [r for *_, r in entries]
        whole = [sum([1 << bit[d] for d in group]) for group in groups]
        together = {bit[c]: mask for group, mask in zip(groups, whole) for c in group}
        always = sum([1 << bit[c] for c in own if c in self._roots])
        key = (len(after), always, *map(tuple, table.values()), *together.values())
        piece = self._known.setdefault(key, FrontierPiece(len(after), table, together, always))
        self.pieces.append(piece)
        self.enter.append([bit[c] for c in before])
        self.names.append(names)
        return after

    def search(
        self, width: int = MAX_EXACT_WIDTH, *, deadline: float = math.inf, stop: Callable[[], bool] | None = None,
        drops: bool = True,
    ) -> LabelSearchResult:  # fmt: skip
        """The cheapest rows found; they are optimal if no label was dropped.

        Labels are dropped if a bucket exceeds `width`, the total limits are exceeded, or most of the time to `deadline`
        (time.perf_counter()) is over: then the search continues as a beam search with BEAM_WIDTH labels a bucket, or
        `width` if that is less than MAX_EXACT_WIDTH (fewer where memory is short). Without `drops` the search ends
        instead. The result has no solution if the search ended, `stop` returned True, the deadline passed, or a
        component has too many derivations.
        """
        began = time.perf_counter()
        first = {piece: n for n, piece in reversed([*enumerate(self.pieces)])}
        fresh = [len(piece.rows) if first[piece] == n else 0 for n, piece in enumerate(self.pieces)]
        narrow = BEAM_WIDTH if width >= MAX_EXACT_WIDTH else min(width, self.widest)
        run = _Run(width, narrow, began + PROOF_SHARE * (deadline - began), deadline, stop, 0, drops)
        labels: Labels = {0: 0}
        spent = 0
        passages: list[tuple[PieceLabels, dict[int, int]]] = []
        known: dict[tuple[FrontierPiece, frozenset[tuple[int, int]]], PieceLabels] = {}
        for n, (piece, enter) in enumerate(zip(self.pieces, self.enter)):
            if not labels:  # some class has no derivation
                break
            least = min(labels.values())
            bits = [1 << b for b in enter]
            entering = {_permuted(mask, bits) | piece.roots: mask for mask in labels}
            inner = {new: labels[mask] - least for new, mask in entering.items()}
            key = piece, frozenset(inner.items())
            if key not in known:
                run.left = len(piece.rows) + sum(fresh[n + 1 :])
                try:
                    known[key] = run.through(piece, inner)
                except (TimeoutError, OverflowError):
                    return LabelSearchResult(None, math.inf, 0.0, False, run.labels)
            spent += least
            labels = known[key].leave
            passages.append((known[key], entering))
        if not labels:
            return LabelSearchResult(None, math.inf, 0.0, False, run.labels)
        (units,) = labels.values()
        chosen = self._trace(passages)
        cost = self.rows.total(chosen)
        lower = 0.0
        if run.whole:  # unless units are exact, each class may cost half a unit less than counted
            rounded = 0.0 if self.exact else 0.51 * self.rows.n_classes
            lower = max(0.0, min((spent + units - rounded) / self.scale, cost, self.upper))
        return LabelSearchResult(chosen, cost, lower, run.whole and cost - lower <= PROVED_GAP * cost, run.labels)

    def _trace(self, passages: Sequence[tuple[PieceLabels, dict[int, int]]]) -> list[int]:
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
        assert walked is not None  # every class read by a chosen row was needed below it
        return walked


def _cuts(widths: Sequence[int]) -> list[int]:
    """Steps after which the order is cut: the narrowest within MIN_CUT_DISTANCE, the first of equals; and the last
    step."""
    found: list[int] = []
    for n, width in enumerate(widths[:-1]):
        near = widths[max(0, n - MIN_CUT_DISTANCE) : n + MIN_CUT_DISTANCE + 1]
        if width <= min(near) and (not found or n - found[-1] > MIN_CUT_DISTANCE):
            found.append(n)
    return [*found, len(widths) - 1] if widths else []


def _permuted(mask: int, places: Sequence[int]) -> int:
    """A mask with each set bit replaced by the mask `places` of that bit."""
    found = 0
    while mask:
        low = mask & -mask
        found |= places[low.bit_length() - 1]
        mask ^= low
    return found


@dataclass
class _Run:
    """Progress of one search.

    `left`: classes still to be resolved, equal pieces once; `whole`: no label was dropped; otherwise `since`: (time,
    classes left) when dropping began.
    """

    width: int
    narrow: int  # labels of a bucket that are kept where labels are dropped
    hurry: float
    deadline: float
    stop: Callable[[], bool] | None
    left: int
    drops: bool = True  # whether labels may be dropped
    labels: int = 0
    whole: bool = True
    since: tuple[float, int] | None = None
    bits: int = 0  # number of bits of a label in the current piece
    bytes: int = 0  # bytes of all labels so far

    def through(self, piece: FrontierPiece, labels: Labels) -> PieceLabels:
        """Search one piece.

        Raises TimeoutError at the deadline, when `stop` returns True, or if labels would have to be dropped without
        `drops`; OverflowError if a component has too many derivations.
        """
        self.bits = top = piece.after + len(piece.rows)
        buckets: list[dict[int, Label]] = [
            {} for _ in range(top + 1)
        ]  # by highest bit + 1; leaving labels are in the first
        at = [buckets[0]] * (piece.after + 1) + buckets[piece.after + 1 :]  # bucket by bit length of the label
        for mask, cost in labels.items():
            at[mask.bit_length()][mask] = (cost, mask, None)
        for b in range(top - 1, piece.after - 1, -1):
            self.left -= 1
            if buckets[b + 1]:
                buckets[b + 1] = self._pruned(buckets[b + 1])
                _resolve(piece, b, buckets[b + 1], at)
        buckets[0] = self._pruned(buckets[0])
        return PieceLabels({mask: label[0] for mask, label in buckets[0].items()}, buckets)

    def _pruned(self, bucket: dict[int, Label]) -> dict[int, Label]:
        now = time.perf_counter()
        if now > self.deadline or (self.stop is not None and self.stop()):
            raise TimeoutError
        wide = self.whole and now < self.hurry and self.labels < MAX_EXACT_LABELS and self.bytes < MAX_LABEL_BYTES
        if not wide:
            self._keep_pace(now)
            bucket = self._cheapest(bucket, BEAM_DOMINANCE_FACTOR * self.narrow)
        most = self.width if wide else self.narrow
        if len(bucket) > MIN_LABELS_TO_FILTER:
            bucket = _unbeaten(bucket, most + 1)
        if len(bucket) > most:
            bucket = self._cheapest(bucket, self.narrow)
        self.labels += len(bucket)
        self.bytes += len(bucket) * (self.bits // 8 + LABEL_OVERHEAD_BYTES)
        return bucket

    def _keep_pace(self, now: float) -> None:
        """Raises TimeoutError if the beam is not expected to end in time."""
        if self.since is None:
            self.since = now, self.left
        began, left = self.since
        done = left - self.left
        if (
            done > MIN_CLASSES_TO_EXTRAPOLATE
            and (now - began) * self.left > MAX_OVERTIME_RATIO * (self.deadline - now) * done
        ):
            raise TimeoutError

    def _cheapest(self, bucket: dict[int, Label], most: int) -> dict[int, Label]:
        if len(bucket) <= most:
            return bucket
        if not self.drops:
            raise TimeoutError
        self.whole = False
        return {mask: bucket[mask] for mask in sorted(bucket, key=lambda mask: bucket[mask][0])[:most]}


def _resolve(piece: FrontierPiece, b: int, bucket: dict[int, Label], at: Sequence[dict[int, Label]]) -> None:
    """Expand each label waiting for bit b by the derivations of its needed classes in b's component.

    `at`: buckets by bit length.
    """
    inside = piece.groups[b]
    if inside == 1 << b:
        ways = [(move[0], move[1], move) for move in piece.moves(inside)]
        for mask, (cost, _, _) in bucket.items():
            rest = mask ^ inside
            for price, reads, move in ways:
                new = rest | reads
                target = at[new.bit_length()]
                known = target.get(new)
                total = cost + price
                if known is None or total < known[0]:
                    target[new] = (total, mask, move)
        return
    for mask, (cost, _, _) in bucket.items():
        needed = mask & inside
        rest = mask ^ needed
        for move in piece.moves(needed):
            new = rest | move[1]
            target = at[new.bit_length()]
            known = target.get(new)
            total = cost + move[0]
            if known is None or total < known[0]:
                target[new] = (total, mask, move)


def _unbeaten(bucket: dict[int, Label], most: int) -> dict[int, Label]:
    """Labels that are not dominated: no other label is at most as expensive and needs a subset.

    Only the `most` cheapest of them where that is at most MAX_DOMINATING_LABELS; all labels where they differ in more
    than 64 bits.
    """
    varies = reduce(or_, bucket) ^ reduce(and_, bucket)
    if varies.bit_count() > 64:
        return bucket
    masks = sorted(bucket, key=lambda mask: bucket[mask][0])
    if most <= FEW_LABELS:
        return _first_unbeaten(bucket, masks, most)
    bits = _packed(masks, bits_of(varies))
    kept = np.ones(len(masks), bool)
    champions = 0
    for n in range(len(masks)):
        if kept[n]:
            champions += 1
            if champions == most:
                kept[n + 1 :] = False
            if champions >= min(most, MAX_DOMINATING_LABELS + 1):
                break
            beaten = (bits[n] & ~bits[n + 1 :]) == 0
            kept[n + 1 :] &= ~beaten
    return {masks[n]: bucket[masks[n]] for n in np.flatnonzero(kept).tolist()}


def _first_unbeaten(bucket: dict[int, Label], masks: Iterable[int], most: int) -> dict[int, Label]:
    """The first `most` labels, in the order of `masks`, that need no superset of an earlier one of them."""
    kept: dict[int, Label] = {}
    for mask in masks:
        free = ~mask
        for other in kept:
            if not other & free:
                break
        else:
            kept[mask] = bucket[mask]
            if len(kept) == most:
                break
    return kept


def _packed(masks: Iterable[int], varying: Sequence[int]) -> npt.NDArray[np.uint64]:
    """The varying bits of each mask, packed into a 64-bit word."""
    low = varying[0] if varying else 0
    size = ((varying[-1] if varying else 0) - low) // 8 + 1
    keep = (1 << 8 * size) - 1
    raw = b"".join([((m >> low) & keep).to_bytes(size, "little") for m in masks])
    bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, size), axis=1, bitorder="little")
    picked = bits[:, [v - low for v in varying]].astype(np.uint64)
    return picked @ (np.uint64(1) << np.arange(len(varying), dtype=np.uint64))
