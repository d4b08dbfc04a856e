"""Ranges of loops over an axis, without the iterations that cannot contribute because masks replace what every
reduction reduces by its neutral element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.index import Axis, index
from ...ir.loop_fusion import AxisMask, Bound, body_masks, index_bounds, shared_maximum
from .frame import TritonPart
from .index import Positions
from .values import TileValues


@dataclass(eq=False)
class LoopBounds(TritonPart):
    """Emitter part for the ranges of loops over an axis, which masks may shorten."""

    positions: Positions
    values: TileValues

    def segments(self, ready: Sequence[Expr], axis: Axis) -> list[tuple[str, str, dict[Expr, Expr]]]:
        """Ranges into which the loop over `axis` is divided, as (start, end, masks that are redundant there -> their
        replacements); start and end are Triton expressions.

        `ready`: reductions that the loops compute. Where a mask makes what every reduction reduces neutral beyond a
        bound, the loop ends at the bound. With a causal mask there are two ranges, and only the second, over the last
        tiles, applies the mask.
        """
        own = [e for e in ready if shared_maximum(e, axis) not in ready]
        found = [self.axis_masks(e, axis) for e in own if axis not in self.frame.single]
        if not all(found) or not found:
            return [("0", self._last_seen(own, axis) or str(axis.size), {})]
        step = self.frame.block[axis.name]
        lows, highs = (
            set.intersection(*({r.rest for r in axis_masks if r.side == side} for axis_masks in found))
            for side in (1, -1)
        )
        first = [f"tl.maximum({self.positions.extreme(i * -1, 'min')}, 0) // {step} * {step}" for i in lows][:1] or [
            "0"
        ]
        last = [f"tl.minimum({self.positions.extreme(i, 'max')} + 1, {axis.size})" for i in highs][:1] or [
            str(axis.size)
        ]
        masks = {r.mask: r.kept for axis_masks in found for r in axis_masks}
        alone = all(len(axis_masks) == 1 and axis_masks[0].alone for axis_masks in found)
        if lows or len(highs) != 1 or not alone or axis.size <= step:
            return [(first[0], last[0], {})]
        (bound,) = highs
        free = self.fresh("free")
        seen = f"tl.minimum({self.positions.extreme(bound, 'min')} + 1, {axis.size})"
        seen = f"tl.maximum({seen}, 0)" if bound.range[0] < -1 else seen  # a part may begin beyond all that a row sees
        self.line(f"{free} = {seen} // {step} * {step}")
        return [("0", free, masks), (free, last[0], {})]

    def _last_seen(self, own: Sequence[Expr], axis: Axis) -> str:
        """Text of the loop's end if every maximum is masked beyond a bound that is read from memory (such as the
        current position in a KV cache); else ""."""
        if axis in self.frame.single or any(e.value[0] != "max" for e in own) or not own:
            return ""
        first, *others = ([b for b in index_bounds(e.args[0]) if self._ends(b, axis)] for e in own)
        for at, number, strict in (b for b in first if all(b in o for o in others)):
            bound, none = self.values.value(number), self.positions.position(at - index(axis) - (not strict))
            if not bound.dims and not none.dims:  # at `none` and below nothing is seen; the number may be any
                most = f"tl.minimum({bound.atom}, ({none.text}) + {axis.size})"
                return f"tl.maximum({most} - ({none.text}), 0).to(tl.int32)"
        return ""

    def _ends(self, bound: Bound, axis: Axis) -> bool:
        """Whether a bound limits `axis` by values that are constant in the loop."""
        at, number, _ = bound
        rest = at - index(axis) * at.coefficient(axis)
        return (
            at.coefficient(axis) == 1
            and axis not in rest.axes | number.axes
            and rest.axes | number.axes <= self.frame.scope.bound
        )

    def axis_masks(self, e: Expr, axis: Axis) -> list[AxisMask]:
        """The masks in the expression that `e` reduces (its body) that bound `axis` from below or above."""
        found = []
        for room, mask, kept, alone in body_masks(e, self.kernel.builder.const(1.0)):
            side = room.coefficient(axis)
            rest = room - index(axis) * side
            across = {self.frame.dim_of(a) for a in rest.axes if a not in self.shape.batch}
            if side in (1, -1) and axis not in rest.axes and rest.axes <= self.frame.scope.bound and len(across) <= 1:
                found.append(AxisMask(rest, side, mask, kept, alone))
        return found
