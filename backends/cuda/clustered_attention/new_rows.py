"""Emits the new rows of keys and values (of a decode step's token) that an attention kernel writes into its caches.

A warp computes such a row into shared memory; there the kernel reads it in place of the row that was loaded from the
cache at this position. The first block of a cluster also writes it to global memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ....egraph.types.dtypes import itemsize
from ...ir.expr import Expr, walk
from ...ir.index import Axis, Index, index
from ...ir.kernel import Kernel, OutputStore
from ...ir.op_texts import costly
from ...ir.row_update import RowUpdate, row_update
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from ..emit.frame import CudaScope
from ..emit.kernel import SimtEmitter
from ..emit.nest import ThreadNest
from ..emit.spelling import CTYPES, all_of
from ..emit.thread_layout import DimensionThreads, ThreadLayout, is_vectorizable

VECTOR = 8  # elements that a thread computes at a time


@dataclass(frozen=True)
class NewRow:
    """A row that attention writes into its keys or values. `what`: "keys" or "values"; `update`: where the kernel reads
    the row in place of the old one; `axis`: axis of the row's elements; `store`: the output that writes the row; `at`:
    the position at which it is stored, as an index over `axis`."""

    what: str
    update: RowUpdate
    axis: Axis
    store: OutputStore
    at: Index

    @property
    def own(self) -> OutputStore:
        """An output that stores only this row, with the elements along `axis` instead of the kernel's column axis."""
        return replace(self.store, value=self.update.row)


def first_loads(e: Expr, without: Iterable[Expr] = ()) -> list[Expr]:
    """The loads in the expression `e` whose positions depend neither on other loads nor on reductions, so that they can
    be issued first; not those in `without`, parts of `e`."""
    return [
        x for x in walk([e], without)
        if x.op == "load" and not any(y.op in ("load", "reduce") for a in x.args for y in walk([a]))
    ]  # fmt: skip


def new_rows(
    kernel: Kernel, sides: Mapping[str, tuple[Expr, Axis]], positions: Axis, shape: Shape
) -> tuple[NewRow, ...] | None:
    """The rows that the attention `kernel` writes into its keys and values; empty if it writes none.

    `sides`: "keys", "values" -> (the factor of a product that holds them, the axis of its elements). `positions`: the
    axis of positions in the caches. `shape`: roles of the kernel's axes (row, column, batch, reduction). None if the
    kernel reads a new row that it does not write at the same place, if the row cannot be computed by vectors along one
    axis, or if the kernel writes a row that it does not read.
    """
    (column,), found = shape.cols, []
    for what, (side, axis) in sides.items():
        update = row_update(side)
        if update is None:
            continue
        moved = {column: index(axis)}
        store = next((s for s in kernel.stores if s.parts and _writes(kernel, s, update, moved)), None)
        if store is None or update.position != index(positions) or update.place.axes - {*shape.batch}:
            return None
        at = store.at.replaced(moved)
        if update.row.axes - {axis, *shape.batch} or not is_vectorizable(
            at, axis, VECTOR, itemsize(kernel.buffers[store.buffer].dtype)
        ):
            return None
        found.append(NewRow(what, update, axis, store, at))
    return tuple(found) if len(found) == sum(bool(s.parts) for s in kernel.stores) else None


def _writes(kernel: Kernel, store: OutputStore, update: RowUpdate, moved: Mapping[Axis, Index]) -> bool:
    """Whether a store writes the row of `update` to its place; `moved`: axes of the store -> axes of the row."""
    operand, at, _, dtype = update.load.value
    (axis,) = update.position.axes
    step = at.coefficient(axis)
    return (
        store.parts == ((update.place, step),) and step % VECTOR == 0
        and store.at.replaced(moved) == at - index(axis) * step
        and kernel.buffers[store.buffer] == kernel.buffers[operand] and kernel.buffers[operand].dtype == dtype
        and kernel.builder.substituted([store.value], moved)[0] is update.row
    )  # fmt: skip


def row_bytes(rows: Sequence[NewRow]) -> int:
    """Total bytes of shared memory that the new rows take, each in the dtype of the cache that it goes into."""
    return sum(r.axis.size * itemsize(str(r.update.load.value[3])) for r in rows)


def row_layout(new: NewRow, shape: Shape, early: bool) -> ThreadLayout:
    """Thread layout of the one warp that computes the new row: vectors along the row. `early`: whether the kernel uses
    programmatic dependent launch."""
    size, dim = new.axis.size, _dimension(new, shape)
    lanes = min(32, 1 << max(0, (-(-size // VECTOR) - 1).bit_length()))
    summed = {x.axis for x in walk([new.update.row]) if x.op == "reduce"} - {new.axis}
    sizes = {dim: size, **{a.name: a.size for a in shape.inner if a in summed}}
    dims = {d: DimensionThreads(lanes, VECTOR, -(-n // (VECTOR * lanes))) for d, n in sizes.items()}
    return ThreadLayout(dims, early, shared={d: dim for d in dims if d != dim})


def _dimension(new: NewRow, shape: Shape) -> str:
    """The dimension of a row's elements in thread layouts."""
    return "n" if new.axis in shape.cols else new.axis.name


def compute_early(emitter: SimtEmitter, e: Expr) -> None:
    """Emit the values in the expression `e` that take long and need only operands which are read before the wait for
    the previous kernel, such as sines and cosines of the token's position, before that wait, too.

    The loads must have been emitted.
    """
    frame = emitter.frame

    def early(x: Expr) -> bool:
        below = list(walk([x]))
        loads = [y for y in below if y.op == "load"]
        plain = x.kind == "float" and not any(y.op == "reduce" for y in below)
        known = bool(loads) and all(y in frame.top.known and frame.before_wait(y) for y in loads)
        return costly(x.op) and plain and known

    found = [x for x in walk([e]) if early(x)]
    inner = {y for x in found for a in x.args for y in walk([a])}
    for x in (x for x in found if x not in inner):
        frame.ahead.known |= {y: frame.top.known[y] for y in walk([x]) if y.op == "load"}
        with frame.inside(frame.ahead):
            frame.top.known[x] = emitter.loads.kept(x)


def row_lines(
    new: NewRow, emitter: SimtEmitter, first: int, parts: int, place: str, *, waits: bool = False
) -> list[str]:
    """Lines of CUDA code by which the warp that begins at thread `first` computes the row `new` into the shared-memory
    array `new_keys` or `new_values`, and the first of the `parts` blocks of a cluster writes it to global memory.

    `emitter`: emitter of the row's store alone (`NewRow.own`) in the layout `row_layout`; `place`: variable with the
    row's position. `waits`: whether the warp has not waited for the previous kernel yet. Raises Unfusable if the row
    needs several warps.
    """
    dim, store = _dimension(new, emitter.frame.shape), new.own
    frame, dtype, head = emitter.frame, str(new.update.load.value[3]), CudaScope(1, set())
    with frame.inside(head):
        for d in frame.layout.dims:
            if text := frame.thread(d):
                frame.line(f"const int {d}_0 = {text};")
    for e in first_loads(store.value):
        emitter.loads.need(e)
    compute_early(emitter, store.value)
    for e in (store.value, *store.guards):
        emitter.loads.need(e)
    nest, name = ThreadNest(frame, (dim,), dim, inner=dim), frame.fresh("y")
    nest.known[new.update.place] = place
    text = nest.scalar(store.value, nest.deepest, dtype=dtype)
    masks = [*nest.masks((dim,)), *([f"thread < {frame.layout.used}"] if frame.layout.used < 32 else [])]
    guards = [nest.scalar(g, nest.depth(frame.spans(g))) for g in store.guards]
    at = nest.position(new.at, store.parts, new.at.range[1], start=True)
    nest.before(f"Pack<{CTYPES[dtype]}, {VECTOR}> {name};")
    nest.line(f"{name}.at[{dim}_v] = {text};")
    condition = f"if ({all_of(masks)}) " if masks else ""
    nest.after(f"{condition}write(new_{new.what} + {nest.coordinate(dim, start=True)}, {name});")
    guards += masks + (["attention.block == 0"] if parts > 1 else [])
    condition = f"if ({all_of(guards)}) " if guards else ""
    nest.after(f"{condition}write({frame.param[store.buffer]} + {at}, {name});")
    nest.close()
    if frame.shared or frame.layout.threads > 32:
        raise Unfusable("a new row that needs several warps")
    wait = ["    await_previous();"] if waits else []
    body = [*head.lines, *frame.ahead.lines, *wait, *frame.top.lines]
    return [
        f"if (attention.thread / 32 == {first // 32}) {{",
        f"    const int thread = attention.thread - {first};",
        *body,
        "}",
    ]


def place_lines(place: Expr, name: str, emitter: SimtEmitter) -> list[str]:
    """Lines of CUDA code, written by `emitter`, that define the integer variable `name` as `place`, the position of a
    new row in the cache.

    Raises Unfusable if the position differs between elements.
    """
    frame = emitter.frame
    if frame.spans(place):
        raise Unfusable("a new row at several positions")
    emitter.loads.need(place)
    nest = ThreadNest(frame, ())
    nest.line(f"const long long {name} = {nest.scalar(place, 0)};")
    nest.close()
    return [line.removeprefix("    ") for line in frame.top.lines]


__all__ = ["NewRow", "first_loads", "new_rows", "place_lines", "row_bytes", "row_layout", "row_lines"]
