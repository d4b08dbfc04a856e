"""Emits stores of results, vectorized where their elements are contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....egraph.types.dtypes import itemsize
from ...ir.kernel import OutputStore
from ...ir.unfusable import Unfusable
from .frame import CudaPart
from .loads import ThreadLoads
from .nest import ThreadNest
from .spelling import CTYPES, all_of, enclosed
from .staged_row import STAGED
from .thread_layout import is_vectorizable


@dataclass(eq=False)
class ThreadStores(CudaPart):
    """Emitter part for stores of results; it has the parts emitted that a result needs, such as loads and
    reductions."""

    loads: ThreadLoads

    def write(self, store: OutputStore) -> None:
        """Emit the loads and reductions that one result needs, and its store, vectorized where its elements are
        contiguous.

        Raises Unfusable if the result varies along an axis that its position does not depend on.
        """
        frame = self.frame
        value, buffer = store.value, self.kernel.buffers[store.buffer]
        for e in store.exprs:
            self.loads.need(e)
        axes = frozenset(store.at.axes).union(*(e.axes for e in store.exprs[1:]))
        dims = frame.dims(axes)
        if not set(frame.spans(value)) <= set(dims):
            raise Unfusable("an output that varies along an axis that its store index lacks")
        guarded = {d for e in store.exprs[1:] for d in frame.spans(e)}
        lanes = next((d for d in dims if d not in guarded and frame.groups[d] and is_vectorizable(
            store.at, frame.groups[d][-1], frame.along[d].vector, itemsize(buffer.dtype))
            and all(step % frame.along[d].vector == 0 for _, step in store.parts)), "")  # fmt: skip
        nest = ThreadNest(frame, dims, lanes, inner=lanes)
        ctype, target = CTYPES[buffer.dtype], frame.param[store.buffer]
        place = nest.position(store.at, store.parts, store.at.range[1], start=True)
        masks = [*nest.masks(dims), *(nest.scalar(g, nest.depth(frame.spans(g))) for g in store.guards)]
        masks += [
            f"{enclosed(frame.lane(d))} == 0"
            for d, along in self.layout.apart.items()
            if d not in dims and along.threads > 1
        ]
        if self.layout.threads > self.layout.used:
            masks.append(f"thread < {self.layout.used}")
        if axes & self.kernel.stored_sides and store.buffer != STAGED:
            masks += self._first_block(dims)
        condition = f"if ({all_of(masks)}) " if masks else ""
        text = nest.scalar(value, nest.deepest, dtype=buffer.dtype)
        if lanes:
            name = self.fresh("y")
            nest.before(f"Pack<{ctype}, {frame.along[lanes].vector}> {name};")
            nest.line(f"{name}.at[{lanes}_v] = {text};")
            nest.after(f"{condition}write({target} + {place}, {name});")
        else:
            nest.line(f"{condition}{target}[{place}] = {text};")
        nest.close()

    def _first_block(self, dims: Sequence[str]) -> list[str]:
        """Conditions under which a block stores a result that varies along `dims` only: of the blocks that compute
        equal values, the first one stores. Raises Unfusable if `dims` has a reduction axis that a block loops over."""
        frame = self.frame
        if frame.walked & {*dims}:
            raise Unfusable("an output along a reduction axis that a block loops over")
        return [f"{enclosed(frame.place[d])} == 0" for d in ("m", "n") if d not in dims and frame.place.get(d)]
