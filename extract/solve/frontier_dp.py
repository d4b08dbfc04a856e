"""Solves kernel covers of deep models, whose layers are joined by few values, exactly by dynamic programming (frontier
DP).

Classes are resolved in an order with few open classes (needed and not yet resolved) at any time. The classes of a
strongly connected component are resolved together; a root is resolved only when its children are open anyway (it is
needed in any case, so it can wait at no cost). A label (state of the search) is a set of needed classes, with the least
cost to reach it. The order is cut where few classes are open. The labels inside a piece between two cuts depend only on
the piece and on the labels at its beginning, so that equal layers are searched once. Costs are integers in units far
finer than any tolerance: rounding of floats would make equal layers differ."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .components import colours
from .frontier_pieces import FrontierPiece, Label, Labels, PieceLabels
from .label_dominance import undominated
from .label_setting import LabelSearchResult
from .problem import ProblemRows
from .resolution_order import ResolutionOrder
from .structures import Structures

MIN_CUT_DISTANCE = 6
"""A cut of the order is a step with no more open classes than any other within MIN_CUT_DISTANCE."""

COST_UNITS = 2.0**46
"""Upper limit of all costs together in integer units: sums are exact in 64 bits, and rounding loses 1e-11 of the cost
for a thousand classes. A unit is a power of two: integer costs are exact."""

EXCLUDED_UNITS = 2 * int(COST_UNITS)
"""Units of a row that alone exceeds the cost of a known solution."""

PROVED_GAP = 1e-8
"""Relative difference of cost and bound up to which a result counts as proved."""

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
"""Buckets of more labels are filtered by dominance (`label_dominance.py`)."""


class FrontierDP:
    """Frontier DP of a problem. `fits`: whether few enough classes are open at each place of the order for a search
    that proves optimality to fit into memory. `upper`: cost of a known solution. `structures`: cache of orders."""

    def __init__(self, rows: ProblemRows, upper: float, structures: Structures | None = None) -> None:
        self.rows, self.upper = rows, upper
        self.scale = 2.0 ** math.floor(math.log2(COST_UNITS / max(upper, 1e-290)))
        top = upper * (1 + 1e-9)
        self.units = [round(cost * self.scale) if cost <= top else EXCLUDED_UNITS for cost in rows.cost]
        self.exact = all(n == cost * self.scale for n, cost in zip(self.units, rows.cost) if cost <= top)
        order = (structures or Structures()).order(rows, lambda: colours(rows, self.units))
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
                    (self.units[r], sum([one[k] for k in rows.children[r] if k in one]), rows.cost[r], r)
                    for r in rows.members[c]
                ]
            )
            table[bit[c]] = [(cost, children) for cost, children, *_ in entries]
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
        drops: bool = True, most_labels: float = math.inf,
    ) -> LabelSearchResult:  # fmt: skip
        """The cheapest rows (ways to compute a class) found; they are optimal if no label was dropped.

        Labels are dropped if a bucket exceeds `width`, the total limits or `most_labels` in total are exceeded, or most
        of the time to `deadline` (time.perf_counter()) is over: then the search continues as a beam search with
        BEAM_WIDTH labels a bucket, or `width` if that is less than MAX_EXACT_WIDTH (fewer where memory is short).
        Without `drops` the search ends instead. The result has no solution if the search ended, `stop` returned True,
        the deadline passed, or a component has too many derivations.
        """
        began = time.perf_counter()
        first = {piece: n for n, piece in reversed([*enumerate(self.pieces)])}
        fresh = [len(piece.rows) if first[piece] == n else 0 for n, piece in enumerate(self.pieces)]
        narrow = BEAM_WIDTH if width >= MAX_EXACT_WIDTH else min(width, self.widest)
        most = min(most_labels, MAX_EXACT_LABELS)
        run = _Run(width, narrow, began + PROOF_SHARE * (deadline - began), deadline, stop, 0, drops, most)
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
    most_labels: float = MAX_EXACT_LABELS
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
        wide = self.whole and now < self.hurry and self.labels < self.most_labels and self.bytes < MAX_LABEL_BYTES
        if not wide:
            self._keep_pace(now)
            bucket = self._cheapest(bucket, BEAM_DOMINANCE_FACTOR * self.narrow)
        most = self.width if wide else self.narrow
        if len(bucket) > MIN_LABELS_TO_FILTER:
            bucket = undominated(bucket, most + 1)
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
        priced = [(move[0], move[1], move) for move in piece.moves(inside)]
        for mask, (cost, _, _) in bucket.items():
            rest = mask ^ inside
            for price, reads, move in priced:
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
