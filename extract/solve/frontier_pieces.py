"""Computes the pieces of the frontier DP (the e-classes between two cuts of the order in which they are resolved) and
their labels (search states)."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_DERIVATIONS = 2_000
"""Largest number of derivations enumerated for the needed classes of one component."""


Move = tuple[int, int, tuple[tuple[int, int], ...]]  # (units, classes read, chosen (member, row index) pairs)


Label = tuple[int, int, "Move | None"]  # (units so far, predecessor label, move)


Labels = dict[int, int]  # needed classes -> units


@dataclass(eq=False)
class FrontierPiece:
    """Subproblem between two cuts of the order in which classes are resolved, with local bit numbers.

    Bits 0..after-1 are the classes open (needed, not resolved) at its end, the following bits its own classes, in
    reverse order of resolution. `rows[b]`: (cost, classes read as bits) of each row (a way to compute a class) of the
    class with bit b. `groups[b]`: mask of the strongly connected component of b. `roots`: mask of own classes that are
    always needed.
    """

    after: int
    rows: dict[int, list[tuple[int, int]]]
    groups: dict[int, int]
    roots: int
    _moves: dict[int, list[Move] | None] = field(default_factory=dict)

    def moves(self, needed: int) -> list[Move]:
        """Pareto-optimal ways to derive the classes in the mask `needed`, which belong to one strongly connected
        component.

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
                [
                    (cost, children, ((top, n),))
                    for n, (cost, children) in enumerate(self.rows[top])
                    if not children & inside
                ]
            )
        found: list[Move] = []
        tried = 0
        stack: list[tuple[int, int, int, tuple[tuple[int, int], ...]]] = [(needed, 0, 0, ())]
        while stack:
            todo, cost, reads, chosen = stack.pop()
            if not todo:
                if len(chosen) == 1 or _acyclic({b: self.rows[b][n][1] & inside for b, n in chosen}):
                    found.append((cost, reads, chosen))
                continue
            b = todo.bit_length() - 1
            made = sum([1 << m for m, _ in chosen]) | 1 << b
            for n, (price, children) in enumerate(self.rows[b]):
                tried += 1
                if not children >> b & 1:
                    stack.append(
                        (
                            (todo | children & inside) & ~made,
                            cost + price,
                            reads | children & ~inside,
                            (*chosen, (b, n)),
                        )
                    )
            if tried > MAX_DERIVATIONS:
                raise OverflowError("too many derivations in a component")
        return _pareto(found)


def _pareto(moves: list[Move]) -> list[Move]:
    """Moves, cheapest first, without those that read all that an earlier one reads."""
    if len(moves) < 2:
        return moves
    kept: list[Move] = []
    for move in sorted(moves, key=lambda w: (w[0], w[1].bit_count(), w[1], w[2])):
        beyond = ~move[1]
        for other in kept:
            if not other[1] & beyond:
                break
        else:
            kept.append(move)
    return kept


def _acyclic(reads: dict[int, int]) -> bool:
    """Whether chosen rows of one component (bit -> bits read) are acyclic."""
    left = dict(reads)
    while left:
        open_ = sum([1 << b for b in left])
        free = [b for b, children in left.items() if not children & open_]
        if not free:
            return False
        for b in free:
            del left[b]
    return True


@dataclass
class PieceLabels:
    """Result of searching a piece of the frontier DP: `leave` are the labels (sets of needed classes) at its end,
    `buckets` the labels on the way, for tracing back."""

    leave: Labels
    buckets: list[dict[int, Label]]

    def trace(self, mask: int) -> tuple[int, list[tuple[int, int]]]:
        """Derivation of the label `mask` at the piece's end: (label at its beginning, (bit, row index) pairs chosen on
        the way)."""
        chosen: list[tuple[int, int]] = []
        _, before, move = self.buckets[0][mask]
        while move is not None:
            chosen += move[2]
            mask = before
            _, before, move = self.buckets[mask.bit_length()][mask]
        return mask, chosen
