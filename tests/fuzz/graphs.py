"""Random typed graphs over the whole op table, with data at which every value is finite.

A `Grower` adds one value after another: an op of the table over values that fit it, or the left side of a rule over
fresh leaves (so that rules meet what they were written for). Each value is evaluated at once, in float64, and one that
is too large, or not finite, is not kept, so that all values of a graph can be compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.composites.composite import expand
from tensor_graphs.egraph.composites.recurrent import layers
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.ops.law_text import GATES
from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.errors import ShapeError
from tensor_graphs.rules import ALL
from tensor_graphs.rules.semantics.sample import attempt

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int64", "int32", "int8", "uint8", "int16")
LARGEST = {"float16": 200.0, "bfloat16": 200.0}  # magnitude that a value may have: 1e3 for the others
RANK = 5
ACTIVATIONS = tuple(op.name for op in OPS.values() if op.composite and op.pointwise and op.arity == 1)


@dataclass(frozen=True)
class Kinds:
    """Settings of random graphs: dtypes, sizes, ops, and how often rules and integers occur."""

    floats: Sequence[str] = FLOATS
    ints: Sequence[str] = INTS
    sizes: Sequence[int] = (1, 1, 2, 3, 4, 5)
    rules: float = 0.2  # how often a rule's left side is planted
    integers: float = 0.15  # how often a leaf is of integers, and as often of bools
    volume: int = 512  # of a value
    exact: bool = False  # only rules that claim every bit
    ops: Collection[str] = ()  # only these (empty: all), one that is there twice twice as often


@dataclass(frozen=True)
class Case:
    """A graph with data for its leaves, each in its own dtype."""

    graph: Graph
    inputs: Mapping[str, Array]

    def text(self) -> str:
        """The graph, one line a node."""
        number: dict[Tensor, int] = {n: i for i, n in enumerate(self.graph.nodes())}
        lines = []
        for n, i in number.items():
            attrs = {k: v for k, v in n.attrs if k not in ("shape", "digest") or n.op in ("reshape", "broadcast_to")}
            lines.append(f"  %{i} = {n.op}({', '.join(f'%{number[a]}' for a in n.args)}) {attrs} : {n.type}")
        return "\n".join([*lines, f"  -> {[number[r] for r in self.graph.roots]}"])


class Unfit(Exception):
    """Raised when a random step gives no usable value."""


@dataclass
class Grower:
    """Generator of random graphs, described above; the same seed gives the same graph."""

    seed: int
    kinds: Kinds = field(default_factory=Kinds)

    def __post_init__(self) -> None:
        self.rng, self.draw = random.Random(self.seed), np.random.default_rng(self.seed)
        self.values: list[Tensor] = []
        self.inputs: dict[str, Array] = {}
        self.params: dict[str, Array] = {}
        self.planted: list[str] = []

    # ------------------------------------------------ leaves
    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def array(self, shape: Sequence[int], dtype: str, bound: int | None = None) -> Array:
        """Data of a type: indices below a bound, few and small integers, short numbers or normal ones."""
        kind = dtypes.category(dtype)
        if bound is not None:
            return self.draw.integers(0, bound, tuple(shape)).astype(dtypes.numpy_dtype(dtype))
        if kind == "bool":
            return np.asarray(self.draw.random(tuple(shape)) < 0.5)
        if kind == "int":
            if self.rng.random() < 0.25:  # all of the dtype's range: what is computed wraps around
                info = np.iinfo(dtypes.numpy_dtype(dtype))
                return self.draw.integers(info.min, info.max, tuple(shape), dtypes.numpy_dtype(dtype), endpoint=True)
            low = 0 if dtype.startswith("u") else -4
            return self.draw.integers(low, 7, tuple(shape)).astype(dtypes.numpy_dtype(dtype))
        x = self.draw.standard_normal(tuple(shape))
        return np.asarray(np.round(2 * x) / 2 if self.pick(0, 1) else x).astype(dtypes.numpy_dtype(dtype))

    def leaf(self, shape: Sequence[int], dtype: str = "", *, bound: int | None = None, kind: str = "") -> Tensor:
        dtype = dtype or self.dtype()
        array = self.array(shape, dtype, bound)
        name = f"v{len(self.inputs) + len(self.params)}"
        kind = kind or self.pick("input", "input", "param", "constant", "full")
        if kind in ("param", "constant") and ({7, 11} & {*shape} or bound in (7, 11)):
            kind = "input"  # an axis that may become a free size (sizes.py) must not be a weight's
        if kind == "full":
            if bound is not None:
                return tg.full(shape, self.rng.randrange(bound), dtype)
            return tg.full(shape, self.pick(0, 1) if dtype == "bool" else self.pick(0, 1, 2, 3), dtype)
        if kind == "constant":
            return tg.constant(array)
        (self.inputs if kind == "input" else self.params)[name] = array
        return tg.input(name, shape, dtype) if kind == "input" else tg.param(name, shape, dtype)

    def dtype(self) -> str:
        found = self.rng.random()
        if found < self.kinds.integers and self.kinds.ints:
            return str(self.pick(*self.kinds.ints))
        return "bool" if found < 2 * self.kinds.integers and self.kinds.ints else str(self.pick(*self.kinds.floats))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        while True:
            found = tuple(self.pick(*self.kinds.sizes) for _ in range(self.rng.randint(low, high)))
            if math.prod(found) <= self.kinds.volume // 2:
                return found

    def fitting(self, test: Callable[[Tensor], bool]) -> Tensor:
        """One of the values that fit, the latest ones most often."""
        found = [v for v in self.values if test(v)]
        if not found:
            raise Unfit
        return found[-1 - min(int(self.rng.expovariate(0.5)), len(found) - 1)]

    def some(self, *categories: str, rank: int = 0) -> Tensor:
        return self.fitting(lambda v: v.rank >= rank and (not categories or dtypes.category(v.dtype) in categories))

    def of(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A value of a type: one that there is, or a leaf."""
        found = [v for v in self.values if v.shape == tuple(shape) and v.dtype == dtype]
        return self.rng.choice(found) if found and self.rng.random() < 0.6 else self.leaf(shape, dtype)

    def like(self, x: Tensor) -> Tensor:
        """A value that broadcasts with x, or to whose shape x broadcasts."""
        found = [
            v for v in self.values
            if v.dtype == x.dtype and v.rank == x.rank and all(1 in (a, b) or a == b for a, b in zip(v.shape, x.shape))
        ]  # fmt: skip
        if found and self.rng.random() < 0.7:
            return self.rng.choice(found)
        return self.leaf([self.pick(1, d, d) for d in concrete(x.shape)], x.dtype)

    # ------------------------------------------------ one step
    def kept(self, x: Tensor) -> bool:
        """Add a value to the graph if it is finite and small; returns whether it was added."""
        if x.rank > RANK or math.prod(concrete(x.shape)) > self.kinds.volume or x.is_leaf:
            return False
        with np.errstate(all="ignore"):
            array = evaluate([x], self.inputs, params=self.params, float64=True)[0]
        if array.dtype.kind == "f" and array.size:
            if not np.isfinite(array).all() or np.abs(array).max() > LARGEST.get(x.dtype, 1e3):
                return False
        self.values.append(x)
        return True

    def step(self) -> None:
        """Try to add one more value."""
        names = sorted(self.kinds.ops) or OPS  # a set's order is not the same in each process
        for _ in range(20):
            try:
                if self.rng.random() < self.kinds.rules:
                    made = self.rule()
                else:
                    made = self.grow(self.rng.choice([n for n in names if OPS[n].arity]))
                if self.kept(made):
                    return
            except (Unfit, ShapeError, ValueError, TypeError, ZeroDivisionError, IndexError):
                continue  # IndexError: indices into an axis of no elements

    def rule(self) -> Tensor:
        """The left side of a random rule over fresh leaves and values of the right types."""
        rules = [d for r in ALL if r.exact or not self.kinds.exact for d in r.directions]
        one = self.rng.choice(rules)
        found = next((f for _ in range(8) if (f := attempt(one, one.guards, self.rng)) is not None), None)
        if found is None:
            raise Unfit
        from tensor_graphs.egraph.patterns.pattern import build

        tensors = {
            n: self.leaf(concrete(k.shape), k.dtype, bound=found.bounds.get(n), kind="param" if n in found.weights else "input")
            if n in found.bounds or n in found.weights else self.of(concrete(k.shape), k.dtype)
            for n, k in found.types.items()
        }  # fmt: skip
        lefts = [build(t, tensors, found.attrs) for t in one.lefts]
        self.planted.append(one.name)
        for extra in lefts[1:]:
            self.kept(extra)
        return lefts[0]

    def grow(self, op: str) -> Tensor:
        """A node of an op over fitting values. Raises Unfit if there are none."""
        made = (_OWN.get(op) or _LAWS.get(OPS[op].law) or _unfit)(self, op)
        while made.entry.composite and self.rng.random() < 0.35:
            made = expand(made)
        return made

    def graph(self, steps: int) -> Case:
        """A graph of up to so many steps and three outputs."""
        while not any(not v.is_leaf for v in self.values):
            self.values = [self.leaf(self.shape(1), kind="input") for _ in range(2)]
            self.values.append(self.leaf(self.shape(2), str(self.pick(*self.kinds.floats))))
            for _ in range(self.rng.randint(min(2, steps), steps)):
                self.step()
        made = [v for v in self.values if not v.is_leaf]
        roots = list(dict.fromkeys([made[-1], *self.rng.sample(made, min(len(made), self.pick(0, 1, 2)))]))
        return case(roots, self.inputs, self.params)


def case(roots: Sequence[Tensor], inputs: Mapping[str, Array], params: Mapping[str, Array]) -> Case:
    """The graph of the roots, with data for its leaves."""
    graph = Graph.of(list(roots))
    params = {str(p.attr("name")): params[str(p.attr("name"))] for p in graph.leaves("param")}
    graph = Graph.of(list(roots), params=params)
    return Case(graph, {str(i.attr("name")): inputs[str(i.attr("name"))] for i in graph.inputs})


# ---------------------------------------------------------------- what an op takes, by name or by law
def _unfit(g: Grower, op: str) -> Tensor:
    raise Unfit


_APART: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda x: tg.abs(x) + 0.5, "log1p": tg.abs, "sqrt": lambda x: tg.abs(x) + 0.25, "exp": lambda x: tg.minimum(x, 2.0),
    "rsqrt": lambda x: tg.abs(x) + 0.5, "recip": lambda x: tg.where(tg.lt(x, 0.0), x - 0.5, x + 0.5),
    "expm1": lambda x: tg.minimum(x, 2.0),
}  # fmt: skip


def _pointwise(g: Grower, op: str) -> Tensor:
    entry = OPS[op]
    x = g.some("float") if entry.floats_only else g.some("float", "float", "int")
    if entry.arity == 1:
        attrs = {
            "clip": {"lo": -0.5, "hi": g.pick(0.75, 2.0)},
            "elu": {"alpha": 0.5},
            "leaky_relu": {"alpha": g.pick(0.1, 0.25)},
        }
        return make(op, [_APART.get(op, lambda v: v)(x)], attrs.get(op, {}))
    y = g.like(x)
    return make(op, [x, y] if g.pick(0, 1) else [y, x])


def _logic(g: Grower, op: str) -> Tensor:
    x = g.some("bool", "bool", "int")
    return make(op, [x, g.like(x)])


def _divided(g: Grower, op: str) -> Tensor:
    x = g.some("float") if op == "div" else g.some("float", "int")
    y = g.like(x)
    zero = tg.eq(y, 0) if dtypes.category(y.dtype) == "int" else tg.lt(tg.abs(y), 0.25)
    y = tg.where(zero, tg.full((1,) * y.rank, 1, y.dtype), y)
    return make(op, [x, y])


def _pow(g: Grower, op: str) -> Tensor:
    x = g.some("float")
    if g.rng.random() < 0.3:  # whole powers of any number
        return make("pow", [x, tg.full((1,) * x.rank, g.pick(0, 1, 2, 3, 4, 5), x.dtype)])
    x = tg.abs(x) + 0.5
    y = (
        tg.full((1,) * x.rank, g.pick(-1, 0.5, -0.5, 1, 2, 3, 1.5), x.dtype)
        if g.pick(0, 1)
        else tg.minimum(g.like(x), 2.0)
    )
    return make("pow", [x, y])


def _compare(g: Grower, op: str) -> Tensor:
    x = g.some("float") if OPS[op].floats_only else g.some("bool") if op == "not" else g.some()
    return make(op, [x] if OPS[op].arity == 1 else [x, g.like(x)])


def _where(g: Grower, op: str) -> Tensor:
    x = g.some()
    y, c = g.like(x), g.like(tg.full(list(concrete(x.shape)), 0, "bool"))
    return make("where", [c, x, y] if g.pick(0, 1) else [c, y, x])


def _cast(g: Grower, op: str) -> Tensor:
    x = g.some()
    target = g.dtype()
    if dtypes.is_float(x.dtype) and dtypes.category(target) == "int":
        x = tg.clip(x, lo=0.0, hi=100.0) if target.startswith("u") else tg.clip(x, lo=-100.0, hi=100.0)
    return tg.cast(x, target)


def _reduce(g: Grower, op: str) -> Tensor:
    only = ("float",) if OPS[op].floats_only else ("float", "int") if op in ("sum", "prod") else ()
    x = g.some(*only, rank=1)
    axes = tuple(sorted(g.rng.sample(range(x.rank), g.rng.choices((1, x.rank), (4, 1))[0])))
    made = make(op, [x], {"axes": axes})
    return made if g.pick(0, 1) else tg.reshape(made, [d for i, d in enumerate(made.shape) if i not in axes])


def _along(g: Grower, op: str) -> Tensor:
    x = g.some("float") if OPS[op].floats_only else g.some(*(("float", "int") if op == "cumsum" else ()))
    if not x.rank:
        raise Unfit
    more = {"descending": g.pick(False, True)} if op == "argsort" else {}
    return make(op, [x], {"axis": g.rng.randrange(x.rank), **more})


def _matmul(g: Grower, op: str) -> Tensor:
    x = g.some("float", "float", "int", rank=2) if g.pick(0, 1, 1) else g.leaf(g.shape(2), g.pick(*g.kinds.floats))
    *batch, _, k = concrete(x.shape)
    n = g.pick(*g.kinds.sizes)
    lead = () if g.pick(0, 1) else tuple(g.pick(1, d, d) if d > 1 else g.pick(1, 1, 2) for d in batch)
    if g.pick(0, 0, 1) and (not lead or len(lead) == len(batch)):
        return make("matmul", [x, tg.swapaxes(g.of((*lead, n, k), x.dtype), -1, -2)])
    y = g.of((*lead, k, n), x.dtype)
    if g.pick(0, 0, 1) and len(lead) == len(batch):
        return make("matmul", [tg.swapaxes(y, -1, -2), tg.swapaxes(x, -1, -2)])
    return make("matmul", [x, y])


def _linear(g: Grower, op: str) -> Tensor:
    x = g.some("float", rank=2)
    k, n = int(x.shape[-1]), g.pick(*g.kinds.sizes)  # type: ignore[arg-type]
    return make("linear", [x, g.of((k, n), x.dtype), g.of((n,), x.dtype)])


def _space(g: Grower, sizes: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    n = len(kernel)
    side = lambda: [g.pick(0, 0, 1, k // 2) for k in kernel]
    low = side()
    high = low if g.pick(0, 1) else side()
    return {
        "strides": [g.pick(1, 1, 2, 3) for _ in range(n)],
        "pads": [*low, *high],
        "dilations": [g.pick(1, 1, 2) for _ in range(n)],
    }


def _image(g: Grower) -> Tensor:
    if g.pick(0, 1):
        return g.fitting(lambda v: v.rank >= 3 and dtypes.is_float(v.dtype))
    space = [g.pick(1, 3, 4, 5, 6) for _ in range(g.pick(1, 1, 2, 2, 3))]
    channels = g.pick(1, 2, 3, 4)
    return g.leaf((g.pick(1, 2), channels, *(space if math.prod(space) <= 64 else space[:2])), g.pick(*g.kinds.floats))


def _conv(g: Grower, op: str) -> Tensor:
    x = _image(g)
    channels = int(x.shape[1])  # type: ignore[arg-type]
    groups = g.pick(*[d for d in (1, 1, 1, 2, 3, 4) if channels % d == 0], channels)
    kernel = [g.pick(1, 1, 2, 3) for _ in range(x.rank - 2)]
    w = g.of((groups * g.pick(1, 2, 3), channels // groups, *kernel), x.dtype)
    made = make("conv", [x, w], {**_space(g, concrete(x.shape[2:]), kernel), "groups": groups})
    return (
        made + tg.reshape(g.of((int(w.shape[0]),), x.dtype), (1, w.shape[0], *[1] * len(kernel)))
        if g.pick(0, 0, 1)
        else made
    )  # type: ignore[arg-type]


def _pool(g: Grower, op: str) -> Tensor:
    x = _image(g)
    kernel = [g.pick(1, 2, 2, 3) for _ in range(x.rank - 2)]
    made = _space(g, concrete(x.shape[2:]), kernel)
    return make(
        op, [x], {"kernel": kernel, **made, "pads": [min(p, k - 1) for p, k in zip(made["pads"], [*kernel, *kernel])]}
    )


def _reshape(g: Grower, op: str) -> Tensor:
    x = g.some()
    left, shape = math.prod(concrete(x.shape)), []
    while left > 1 and len(shape) < 4:
        shape.append(g.rng.choice([d for d in range(1, left + 1) if left % d == 0]))
        left //= shape[-1]
    return tg.reshape(x, g.rng.sample([*shape, left], len(shape) + 1))


def _permute(g: Grower, op: str) -> Tensor:
    x = g.some(rank=2)
    return tg.permute(x, g.rng.sample(range(x.rank), x.rank))


def _broadcast(g: Grower, op: str) -> Tensor:
    x = g.some()
    shape = [g.pick(1, 2, 3) if d == 1 else d for d in concrete(x.shape)]
    return tg.broadcast_to(x, [2, *shape] if g.pick(0, 0, 1) else shape)


def _slice(g: Grower, op: str) -> Tensor:
    x = g.some(rank=1)
    axis = g.rng.randrange(x.rank)
    size = int(x.shape[axis])  # type: ignore[arg-type]
    start = g.rng.randrange(size)
    return tg.slice_axis(x, axis, start, g.rng.randint(start + 1, size), g.pick(1, 1, 1, 2, 3))


def _windows(g: Grower, op: str) -> Tensor:
    x = g.some(rank=1)
    axis = g.rng.randrange(x.rank)
    return tg.windows(x, axis, g.pick(1, 2, 3), g.pick(1, 1, 2), g.pick(1, 1, 2))


def _concat(g: Grower, op: str) -> Tensor:
    x = g.some(rank=1)
    axis = g.rng.randrange(x.rank)
    y = g.of([g.pick(d, d, *g.kinds.sizes) if i == axis else d for i, d in enumerate(concrete(x.shape))], x.dtype)
    return make("concat", [x, y] if g.pick(0, 1) else [y, x], {"axis": axis})


def _pad(g: Grower, op: str) -> Tensor:
    x = g.some(rank=1)
    value = g.pick(0, 1) if not dtypes.is_float(x.dtype) else g.pick(0.0, 0.0, 1.0, -0.5)
    return make(
        "pad", [x], {"axis": g.rng.randrange(x.rank), "lo": g.pick(0, 1, 2), "hi": g.pick(0, 0, 1), "value": value}
    )


def _gather(g: Grower, op: str) -> Tensor:
    x = g.some(rank=1)
    axis = g.rng.randrange(x.rank)
    index = g.leaf(g.shape(0, 2), g.pick("int64", "int64", "int32"), bound=int(x.shape[axis]))  # type: ignore[arg-type]
    return make("gather", [x, index], {"axis": axis})


def _gather_elements(g: Grower, op: str) -> Tensor:
    x = g.some(rank=1)
    axis = g.rng.randrange(x.rank)
    shape = [g.pick(1, 2, d) if i == axis else g.rng.randint(1, d) for i, d in enumerate(concrete(x.shape))]
    if g.pick(0, 1):
        shape = [d if i != axis else s for i, (d, s) in enumerate(zip(concrete(x.shape), shape))]
    return make(op, [x, g.leaf(shape, g.pick("int64", "int64", "int32"), bound=int(x.shape[axis]))], {"axis": axis})  # type: ignore[arg-type]


def _scatter(g: Grower, op: str) -> Tensor:
    x = g.some("float", "float", "int", rank=1)
    axis, mode = g.rng.randrange(x.rank), g.pick("set", "add", "mul", "max", "min")
    shape = list(concrete(x.shape))
    size = shape[axis]
    shape[axis] = g.rng.randint(1, size)
    if mode == "set":  # of two written to one place either may stay: none are
        line = np.stack([g.draw.permutation(size)[: shape[axis]] for _ in range(math.prod(shape) // shape[axis])])
        places = np.moveaxis(line.reshape([d for i, d in enumerate(shape) if i != axis] + [shape[axis]]), -1, axis)
        index = tg.constant(np.ascontiguousarray(places))
    else:
        index = g.leaf(shape, bound=size, dtype=g.pick("int64", "int32"))
    return make(op, [x, index, g.of(shape, x.dtype)], {"axis": axis, "mode": mode})


def _norm(g: Grower, op: str) -> Tensor:
    x = g.some("float", rank=1)
    return make(
        op, [x, *(g.of(concrete(x.shape[-1:]), x.dtype) for _ in range(OPS[op].arity - 1))], {"eps": g.pick(0.1, 0.5)}
    )


def _channel_norm(g: Grower, op: str) -> Tensor:
    x = g.some("float", rank=2)
    channels = int(x.shape[1])  # type: ignore[arg-type]
    operands = [g.of((channels,), x.dtype) for _ in range(OPS[op].arity - 1)]
    if op == "batch_norm":
        return make(op, [x, *operands[:3], tg.abs(operands[3])], {"eps": 0.5})
    return make(op, [x, *operands], {"groups": g.pick(*[d for d in (1, 2, 3) if channels % d == 0]), "eps": 0.5})


def _attention(g: Grower, op: str) -> Tensor:
    *batch, rows, d = q = g.shape(3, 5)
    dtype = g.pick(*g.kinds.floats)
    x = g.of(q, dtype) if g.pick(0, 1) else g.fitting(lambda v: v.rank >= 3 and dtypes.is_float(v.dtype))
    *batch, rows, d = concrete(x.shape)
    causal = g.pick(False, False, True)
    columns = rows if causal and g.pick(0, 1) else rows + g.rng.randint(0, 2)
    lead = tuple(g.pick(1, b, b) for b in batch)
    operands = [x, g.of((*lead, columns, d), x.dtype), g.of((*lead, columns, g.pick(*g.kinds.sizes)), x.dtype)]
    if op != "attention":
        kind = "bool" if op == "hiding_attention" else x.dtype
        operands.append(g.of((*(g.pick(1, b) for b in batch), g.pick(1, rows), columns), kind))
    attrs = {"scale": g.pick(1.0, 0.5, 0.25), "causal": causal, "window": g.pick(0, 0, 0, 2) if causal else 0,
             "softcap": g.pick(0.0, 0.0, 2.0)}  # fmt: skip
    return make(op, operands, attrs)


def _rope(g: Grower, op: str) -> Tensor:
    x = g.fitting(lambda v: v.rank >= 1 and dtypes.is_float(v.dtype) and int(v.shape[-1]) % 2 == 0)  # type: ignore[arg-type]
    line = lambda: g.of([*(g.pick(1, d) for d in concrete(x.shape[:-1])), int(x.shape[-1])], x.dtype)  # type: ignore[arg-type]
    return make(op, [x, line(), line()])


def _cross_entropy(g: Grower, op: str) -> Tensor:
    x = g.fitting(lambda v: v.rank == 2 and dtypes.is_float(v.dtype))
    rows, classes = concrete(x.shape)
    return make(op, [x, g.leaf((rows,), "int64", bound=classes)])


def _recurrent(g: Grower, op: str) -> Tensor:
    """Layers whose weights are so small that rounding does not grow from step to step."""
    x = g.fitting(lambda v: v.rank == 3 and dtypes.is_float(v.dtype) and 0 not in v.shape)
    _, batch, size = concrete(x.shape)
    cell, acts = g.pick(("lstm", "sigmoid tanh tanh"), ("gru", "sigmoid tanh"), ("plain", "tanh"))
    hidden, count, directions = g.pick(1, 2, 3), g.pick(1, 1, 2), g.pick(1, 1, 2)
    width = g.pick(hidden, 1) if cell == "lstm" else hidden
    rows, weights = hidden * GATES[cell][0], []
    for layer in range(count):
        for _ in range(directions):
            inner = directions * width if layer else size
            shapes = [(rows, inner), (rows, width), (rows,), (rows,), *([(width, hidden)] if width != hidden else [])]
            weights += [g.of(s, x.dtype) * 0.25 for s in shapes]
    firsts = [g.of((count * directions, batch, d), x.dtype) for d in ((width, hidden) if cell == "lstm" else (width,))]
    out, last = layers(x, firsts, weights, cell=cell, activations=acts, hidden=hidden, width=width, count=count,
                       directions=directions)  # fmt: skip
    return g.pick(out, *last)


_LAWS: dict[str, Callable[[Grower, str], Tensor]] = {
    "pointwise": _pointwise, "compare": _compare, "where": _where, "cast": _cast, "reduce": _reduce, "arg_reduce": _along,
    "along": _along, "same": _along, "along_index": _along, "matmul": _matmul, "linear": _linear, "conv": _conv, "pool": _pool,
    "reshape": _reshape, "permute": _permute, "broadcast_to": _broadcast, "slice": _slice, "windows": _windows,
    "concat": _concat, "pad": _pad, "gather": _gather, "gather_elements": _gather_elements, "scatter_elements": _scatter,
    "norm": _norm, "channel_norm": _channel_norm, "attention": _attention, "rope": _rope, "cross_entropy": _cross_entropy,
    "recurrent": _recurrent,
}  # fmt: skip
_OWN: dict[str, Callable[[Grower, str], Tensor]] = {
    "and": _logic, "or": _logic, "xor": _logic, "div": _divided, "mod": _divided, "floordiv": _divided, "pow": _pow,
    "flip": lambda g, op: tg.flip(x := g.some(rank=1), g.rng.randrange(x.rank)),
}  # fmt: skip
