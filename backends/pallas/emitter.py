"""Emits Pallas kernels from the kernel IR.

    def reduction_1f(x):
        def kernel(x_ref, out_ref):
            v0 = x_ref[...].astype(jnp.float32)
            v1 = jnp.max(v0, axis=1, keepdims=True)
            ...
        return pl.pallas_call(kernel, out_shape=..., grid=(8,), in_specs=..., out_specs=..., interpret=...)(x)

A value is an array with one dimension per axis of the kernel, of extent 1 along axes that it does not depend on. The
grid runs over blocks of the outermost parallel axis (schedule parameter `m`: rows of a block). An operand is blocked
along that axis if all its loads follow the axis; otherwise each program gets the whole operand. Sums of products are
contractions (`jnp.einsum`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from ..generate.emitter import Launch, LaunchBase, Lowered
from ..generate.schedule import Domain, Schedule
from ..generate.schedule import number as parameter
from ..generate.strategy import Request, Strategy, StrategyEmitter
from ..ir.expr import Expr, below_maximum
from ..ir.index import Axis, Index
from ..ir.kernel import PROBE, Kernel, OutputStore
from ..ir.tiling import Shape
from ..ir.unfusable import Unfusable
from .accesses import DimensionSlice, blocked_axis, blocked_dimension, buffer_shape, last_index, parts_of, row_major
from .spelling import dtype_text, number, scalar_text

__all__ = ["EMITTER", "PallasEmitter", "PallasLaunch", "emit"]

BLOCK = 1 << 16  # elements of a kernel's iteration space that one program of the grid should hold
SCHEDULES = 4  # candidate block sizes


@dataclass(frozen=True)
class PallasLaunch(LaunchBase):
    """One emitted Pallas function and its call. `operands`: names of its arguments in order. The function returns the
    result."""

    name: str
    source: str
    operands: tuple[str, ...]

    def call(self, names: Mapping[str, str]) -> str:
        """The Python expression that calls the function, whose value is the result; `names` maps operands to Python
        variables."""
        return f"{self.name}({', '.join(names[o] for o in self.operands)})"


@dataclass(frozen=True)
class BlockSchedule(Schedule):
    """Schedule (tuning parameters) of a Pallas kernel: the block size of the outermost parallel axis."""

    m: int = parameter("rows of a block", Domain())


def _ranked(request: Request, count: int) -> list[BlockSchedule]:
    """Schedules with legal block sizes of the outermost axis; of those with at most `BLOCK` elements the largest comes
    first."""
    axis = blocked_axis(request.kernel)
    if axis is None:
        return [BlockSchedule(1)]
    inner = prod(a.size for a in request.kernel.axes) // axis.size
    sizes = [m for m in range(axis.size, 0, -1) if axis.size % m == 0]
    small = [m for m in sizes if m * inner <= BLOCK] or sizes[-1:]
    return [BlockSchedule(m) for m in small[: min(SCHEDULES, count)]]


def _legal(kernel: Kernel, shape: Shape, schedule: BlockSchedule, splits: bool) -> bool:
    """Whether the blocks divide the outermost axis."""
    axis = blocked_axis(kernel)
    return schedule.m == 1 if axis is None else axis.size % schedule.m == 0


def _emit_blocks(found: Lowered, schedule: BlockSchedule, name: str) -> Sequence[Launch]:
    """The single function of a kernel."""
    return [emit(found.kernel, schedule.m, name)]


BLOCKS = Strategy(
    "blocks",
    "Pallas functions: a grid over blocks of the outermost parallel axis.",
    BlockSchedule,
    applies=lambda kernel, shape: True,
    ranked=_ranked,
    legal=_legal,
    emit=_emit_blocks,
)


@dataclass
class PallasEmitter(StrategyEmitter):
    """Emitter of Pallas source from kernel IR: one function per kernel."""

    name: str = "pallas"
    version: str = "1"
    setup: tuple[str, ...] = ("pallas_interpreted",)
    needs: tuple[str, ...] = ("jax",)
    strategies: tuple[Strategy[Any], ...] = field(default=(BLOCKS,), kw_only=True)


EMITTER = PallasEmitter()


def emit(kernel: Kernel, rows: int, name: str) -> PallasLaunch:
    """Emit `kernel` as a Pallas function called `name`, in which each program computes `rows` indices of the axis that
    the grid divides into blocks; returns its launch.

    Raises Unfusable if the kernel cannot be expressed in Pallas.
    """
    axis = blocked_axis(kernel)
    return _Writer(kernel, axis if axis is not None and rows < axis.size else None, rows).launch(name)


class _Writer:
    """Writer of one kernel.

    `blocked`: the axis that the grid divides, None for a grid of one program; `rows`: indices of that axis per
    block.
    """

    def __init__(self, kernel: Kernel, blocked: Axis | None, rows: int) -> None:
        for name, buffer in kernel.buffers.items():
            if not row_major(buffer):
                raise Unfusable(f"{name} is not row-major: JAX arrays have no strides")
            if 0 in buffer.shape:
                raise Unfusable(f"{name} has no elements")
        self.kernel, self.blocked, self.rows = kernel, blocked, rows
        bound = [e.axis for e in kernel.reductions]
        self.order = {a: n for n, a in enumerate(dict.fromkeys((*kernel.axes, *bound)))}
        self.real = kernel.compute_dtype
        self.lines: list[str] = []
        self.names: dict[Expr, str] = {}
        self.indices: dict[Axis, str] = {}

    # ------------------------------------------------------------ the function
    def launch(self, name: str) -> PallasLaunch:
        results = list(dict.fromkeys(s.buffer for s in self.kernel.stores))
        if len(results) > 1:
            raise Unfusable("more than one output")
        operands = tuple(n for n in self.kernel.buffers if n not in results)
        for e in self.kernel.exprs:
            if e not in self._contracted:
                self.names[e] = self._named(e, self._text(e))
        self._store([s for s in self.kernel.stores if s.buffer == results[0]])
        grid = self.blocked.size // self.rows if self.blocked else 1
        out = self.kernel.buffers[results[0]]
        specs = ", ".join(self._spec(n) for n in operands)
        given = ", ".join(n if self.kernel.buffers[n].shape else f"{n}.reshape(1)" for n in operands)
        listing = [] if name == PROBE else [f"    # {line}" for line in str(self.kernel).splitlines()]
        text = [
            f"def {name}({', '.join(operands)}):", *listing,
            f"    def kernel({', '.join(f'{n}_ref' for n in (*operands, results[0]))}):",
            *(f"        {line}" for line in self.lines), "",
            "    made = pl.pallas_call(",
            f"        kernel, out_shape=jax.ShapeDtypeStruct({buffer_shape(out)}, {dtype_text(out.dtype)}), grid=({grid},),",
            f"        in_specs=[{specs}], out_specs={self._spec(results[0])},",
            "        interpret=pallas_interpreted(),",
            f"    )({given})",
            f"    return made{'' if out.shape else '.reshape(())'}",
        ]  # fmt: skip
        return PallasLaunch(name, "\n".join(text) + "\n", operands)

    def _spec(self, name: str) -> str:
        buffer = self.kernel.buffers[name]
        shape, place = list(buffer_shape(buffer)), ["0"] * len(buffer_shape(buffer))
        if (d := self._dimension(name)) is not None:
            shape[d], place[d] = self.rows, "i"
        return f"pl.BlockSpec({tuple(shape)}, lambda i: ({', '.join(place)},))"

    def _dimension(self, name: str) -> int | None:
        """The dimension along which a buffer is blocked, which all accesses index by the blocked axis; None for a
        buffer that is not blocked."""
        if self.blocked is None:
            return None
        buffer = self.kernel.buffers[name]
        ats = [s.at for s in self.kernel.stores if s.buffer == name]
        loads = [e for e in self.kernel.exprs if e.op == "load" and e.value[0] == name]
        if any(e.value[2] for e in loads):
            return None
        ats += [e.value[1] for e in loads]
        found = {blocked_dimension(parts_of(at, buffer), buffer, self.blocked) for at in ats}
        return found.pop() if len(found) == 1 else None

    # ------------------------------------------------------------ values
    def _size(self, axis: Axis) -> int:
        return self.rows if axis == self.blocked else axis.size

    def _extent(self, axes: frozenset[Axis]) -> tuple[int, ...]:
        """Shape of a value that depends on these axes."""
        return tuple(self._size(a) if a in axes else 1 for a in self.order)

    def _named(self, e: Expr, text: str) -> str:
        if e.op == "const":
            return text
        name = f"v{len(self.names)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _along(self, axis: Axis) -> str:
        """Variable of the indices of an axis, as an array along the axis's dimension."""
        if axis not in self.indices:
            first = f"pl.program_id(0) * {self.rows} + " if axis == self.blocked else ""
            shape = self._extent(frozenset([axis]))
            self.indices[axis] = name = f"at_{axis.name}"
            self.lines.append(f"{name} = {first}jax.lax.broadcasted_iota(jnp.int32, {shape}, {self.order[axis]})")
        return self.indices[axis]

    def _position(self, at: Index) -> str:
        for axis in sorted(at.axes, key=lambda a: self.order[a]):
            self._along(axis)
        return at.text(self._along)

    def _text(self, e: Expr) -> str:
        args = [self.names[a] for a in e.args if a not in self._contracted]
        if e.op == "const":
            return number(e.value, {"float": self.real, "int": "int64", "bool": "bool"}[e.kind])
        if e.op == "index":
            return f"({self._position(e.value)}).astype(jnp.int64)"
        if e.op == "load":
            return self._load(e, args)
        if e.op == "reduce":
            return self._reduced(e)
        if e.op == "cast":
            return self._cast(e, args[0])
        if (shifted := below_maximum(e)) is not None:
            a, m = (self.names[x] for x in shifted)
            args = [f"({a} - jnp.where(jnp.isneginf({m}), 0, {m}))"]
        text = scalar_text(e.op)
        if not text:
            raise Unfusable(f"{e.op} has no spelling in JAX")
        return text.format(*args)

    def _cast(self, e: Expr, x: str) -> str:
        if e.kind == "float":
            return f"{x}.astype({dtype_text(self.real)})"
        return f"({x} != 0)" if e.kind == "bool" else f"{x}.astype({dtype_text(e.value)}).astype(jnp.int64)"

    def _load(self, e: Expr, args: Sequence[str]) -> str:
        name, at, steps, _ = e.value
        buffer, guards = self.kernel.buffers[name], args[len(steps) :]
        kind = {"float": dtype_text(self.real), "int": "jnp.int64", "bool": "jnp.bool_"}[e.kind]
        parts = None if steps else parts_of(at, buffer)
        if parts is not None and self.blocked in [p.axis for p in parts] and self._dimension(name) is None:
            parts = None
        if parts is not None:
            found = f"{self._box(name, parts)}.astype({kind})"
        else:
            if self._dimension(name) is not None:
                raise Unfusable("an operand split into blocks is loaded at positions outside of its block")
            place = self._position(at)
            for x, step in zip(args, steps):
                place += f" + jnp.clip({x}, 0, {last_index(buffer, step)}) * {step}"
            found = f"jnp.take({name}_ref[...].reshape(-1), {place}, mode='clip').astype({kind})"
        return f"jnp.where({' & '.join(guards)}, {found}, {kind}(0))" if guards else found

    def _box(self, name: str, parts: Sequence[DimensionSlice]) -> str:
        """Text of a box of a buffer as an array with one dimension per axis of the kernel."""
        buffer, blocked = self.kernel.buffers[name], self._dimension(name)
        texts = [":" if d == blocked else p.text(n) for d, (p, n) in enumerate(zip(parts, buffer.shape))]
        box = f"{name}_ref[{', '.join(texts) if set(texts) - {':'} else '...'}]"
        axes = [p.axis for p in parts if p.axis is not None]
        ranked = sorted(axes, key=lambda a: self.order[a])
        if axes != ranked:
            box += f".reshape({_tuple(self._size(a) for a in axes)}).transpose({_tuple(axes.index(a) for a in ranked)})"
        shape = self._extent(frozenset(axes))
        return box if axes == list(self.order) and len(parts) == len(axes) else f"{box}.reshape({shape})"

    # ------------------------------------------------------------ reductions
    @cached_property
    def _contracted(self) -> frozenset[Expr]:
        """Products that only sums read. They are not computed; the sums are emitted as contractions of the factors."""
        readers: dict[Expr, list[Expr | OutputStore]] = {}
        for e in self.kernel.exprs:
            for a in e.args:
                readers.setdefault(a, []).append(e)
        for store in self.kernel.stores:
            for e in store.exprs:
                readers.setdefault(e, []).append(store)
        sums = [e for e in self.kernel.reductions if e.value[0] == "sum" and e.kind == "float"]
        products = [e.args[0] for e in sums if e.args[0].op == "mul" and e.axis in e.args[0].axes]
        return frozenset(p for p in products if all(r in sums for r in readers[p]))

    def _reduced(self, e: Expr) -> str:
        monoid, axis = e.value
        body = e.args[0]
        if body in self._contracted:
            return self._contraction(e, body)
        x, dim = self.names[body], self.order[axis]
        full = f"jnp.broadcast_to({x}, {self._extent(body.axes | {axis})})" if axis not in body.axes else x
        return f"jnp.{monoid}({full}, axis={dim}, keepdims=True)"

    def _contraction(self, e: Expr, body: Expr) -> str:
        letters = {a: chr(ord("a") + n) for a, n in self.order.items()}
        if len(letters) > 26:
            raise Unfusable("a contraction over more than 26 axes")
        texts, operands = [], []
        for factor in body.args:
            axes = [a for a in self.order if a in factor.axes]
            texts.append("".join(letters[a] for a in axes))
            operands.append(f"{self.names[factor]}.reshape({_tuple(self._size(a) for a in axes)})")
        out = "".join(letters[a] for a in self.order if a in e.axes)
        found = (
            f"jnp.einsum('{','.join(texts)}->{out}', {', '.join(operands)}, precision='highest', "
            f"preferred_element_type={dtype_text(self.real)})"
        )
        return f"{found}.reshape({self._extent(e.axes)})"

    # ------------------------------------------------------------ results
    def _store(self, stores: Sequence[OutputStore]) -> None:
        """Write a result, box by box if all its stores are boxes, else element by element at computed positions."""
        name, buffer = stores[0].buffer, self.kernel.buffers[stores[0].buffer]
        if any(s.parts for s in stores):
            raise Unfusable("a store at a data-dependent position")
        boxes = [None if s.guards else parts_of(s.at, buffer) for s in stores]
        if all(box is not None for box in boxes):
            for store, box in zip(stores, boxes):
                self._store_box(store, box or ())
            return
        count = prod(buffer.shape)
        self.lines.append(f"made = jnp.zeros({count}, {dtype_text(buffer.dtype)})")
        for store in stores:
            axes = store.at.axes.union(store.value.axes, *(g.axes for g in store.guards))
            place, shape = f"({self._position(store.at)})", self._extent(frozenset(axes))
            if store.guards:
                place = f"jnp.where({' & '.join(self.names[g] for g in store.guards)}, {place}, {count})"
            value = f"jnp.broadcast_to({self.names[store.value]}, {shape}).astype(made.dtype)"
            self.lines.append(f"made = made.at[jnp.broadcast_to({place}, {shape})].set({value}, mode='drop')")
        self.lines.append(f"{name}_ref[...] = made.reshape({buffer_shape(buffer)})")

    def _store_box(self, store: OutputStore, parts: Sequence[DimensionSlice]) -> None:
        name, buffer, blocked = store.buffer, self.kernel.buffers[store.buffer], self._dimension(store.buffer)
        axes = [p.axis for p in parts if p.axis is not None]
        ranked = sorted(axes, key=lambda a: self.order[a])
        if not store.value.axes <= set(axes):
            raise Unfusable("an output that varies along an axis that its store index lacks")
        value = f"jnp.broadcast_to({self.names[store.value]}, {self._extent(frozenset(axes))})"
        value += f".reshape({_tuple(self._size(a) for a in ranked)})"
        if axes != ranked:
            value += f".transpose({_tuple(ranked.index(a) for a in axes)})"
        sizes = _tuple(1 if p.axis is None else self._size(p.axis) for p in parts) if parts else "(1,)"
        texts = [":" if d == blocked else p.text(n) for d, (p, n) in enumerate(zip(parts, buffer.shape))]
        place = ", ".join(texts) if set(texts) - {":"} else "..."
        self.lines.append(f"{name}_ref[{place}] = {value}.reshape({sizes}).astype({dtype_text(buffer.dtype)})")


def _tuple(values: Iterable[int]) -> str:
    return repr(tuple(values))
