"""Random programs, optimized and compared with NumPy in float64: `python -m tests.fuzz.eager --graphs 50000 --seed 0`.

Neither the programs nor what they are compared with come from the op table: every operation is written down here a
second time, once as a call of the public API and once as NumPy in float64 (whole numbers in their own dtype, which wrap
around), with its own rule of how far rounding may bring the result. That bound is carried from value to value: the
error of each operand, amplified by the operation's derivative, and the rounding of the operation itself. A whole number
or a truth value that a bound decides (a comparison of nearly equal numbers, the floor of one near a whole number) may
be either; everything else must be equal.

Many small programs, unrelated but for being compiled together, go through one call of `optimize`. `--once SEED`
compiles one alone and prints it.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.saturate.saturate import Limits

Array = np.ndarray[Any, Any]
NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
UNIT = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}  # half a unit in the last place
LARGEST = {"float64": 1e6, "float32": 1e5, "float16": 200.0, "bfloat16": 1e4}  # magnitude that a value may have
LEAST = {"float16": 1.2e-7}  # absolute error allowed where denormal numbers are flushed to 0
FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int64", "int32", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
SIZES = (1, 1, 2, 3, 4, 5, 7, 8)
VOLUME, RANK = 600, 5
SLACK = 40.0  # times the bound: to first order, of one way to compute it


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return NUMPY.get(dtype) or np.dtype(dtype)


def kind(dtype: str) -> str:
    return "float" if dtype in UNIT else "bool" if dtype == "bool" else "int"


@dataclass(eq=False)
class Value:
    """A value of a random program: its expression, its value in NumPy, and a bound of the rounding error of the
    program's value.
    """

    tensor: tg.Tensor
    x: Array  # floats in float64, others in their own dtype
    e: Array  # absolute bound; of whole numbers and truth values 0, or inf where either may be
    dtype: str
    made: str = "leaf"
    of: tuple[Value, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape


class Unfit(Exception):
    """Raised when a random step gives no usable value."""


def bounded(e: Any) -> Array:
    e = np.asarray(e, np.float64)
    return np.where(np.isnan(e), np.inf, e)


Step = Callable[["Writer"], Value]
STEPS: list[tuple[str, int, Step]] = []


def step(weight: int) -> Callable[[Step], Step]:
    def add(f: Step) -> Step:
        STEPS.append((f.__name__, weight, f))
        return f

    return add


@dataclass
class Writer:
    """Writes one random program; the same seed writes the same one."""

    seed: int
    values: list[Value] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    params: dict[str, Array] = field(default_factory=dict)
    skipped: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.draw = np.random.default_rng(self.seed)

    # ------------------------------------------------ leaves
    def shape(self, low: int = 0, high: int = RANK) -> tuple[int, ...]:
        while True:
            found = tuple(self.rng.choice(SIZES) for _ in range(self.rng.randint(low, high)))
            if math.prod(found) <= VOLUME // 4:
                return found

    def numbers(self, shape: Sequence[int], dtype: str, low: int | None = None, high: int | None = None) -> Array:
        shape = tuple(shape)
        if dtype == "bool":
            return np.asarray(self.draw.random(shape) < 0.5)
        if kind(dtype) == "int":
            info = np.iinfo(dtype)
            if low is not None and high is not None:
                return np.asarray(self.draw.integers(low, high, shape)).astype(dtype)
            small = self.draw.integers(max(info.min, -9), 10, shape).astype(dtype)
            large = self.draw.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            ends = self.draw.choice(np.array([info.min, info.max, 0, 1, max(info.min, -1) % info.max], dtype), shape)
            how = self.rng.choice(("small", "small", "mixed", "mixed", "large"))
            if how == "small":
                return small
            pick = self.draw.random(shape)
            return np.asarray(
                np.where(pick < 0.4, small, np.where(pick < 0.8, large, ends)) if how == "mixed" else large
            )
        x = self.draw.standard_normal(shape)
        how = self.rng.choice(("normal", "normal", "short", "wide", "positive"))
        if how == "short":
            x = np.round(2 * x) / 2
        elif how == "wide":
            x = x * 10.0 ** self.draw.uniform(-3, 1.5, shape)
        elif how == "positive":
            x = np.abs(x) + 0.1
        return np.asarray(x).astype(numpy_dtype(dtype))

    def leaf(self, shape: Sequence[int], dtype: str = "", array: Array | None = None) -> Value:
        dtype = dtype or self.dtype()
        array = self.numbers(shape, dtype) if array is None else array
        name = f"g{self.seed}_{len(self.inputs) + len(self.params)}"
        how = self.rng.choice(("input", "input", "input", "param", "constant"))
        if how == "constant":
            tensor = tg.constant(array)
        elif how == "param":
            self.params[name], tensor = array, tg.param(name, array.shape, dtype)
        else:
            self.inputs[name], tensor = array, tg.input(name, array.shape, dtype)
        wide = array.astype(np.float64) if dtype in UNIT else array
        return self.keep(Value(tensor, wide, np.zeros(array.shape), dtype))

    def dtype(self) -> str:
        found = self.rng.random()
        return self.rng.choice(FLOATS) if found < 0.55 else self.rng.choice(INTS) if found < 0.9 else "bool"

    def keep(self, v: Value) -> Value:
        self.values.append(v)
        return v

    # ------------------------------------------------ operands
    def some(self, *kinds: str, rank: int = 0) -> Value:
        found = [v for v in self.values if len(v.shape) >= rank and (not kinds or kind(v.dtype) in kinds)]
        if found and self.rng.random() < 0.9:
            return found[-1 - min(int(self.rng.expovariate(0.4)), len(found) - 1)]
        if not kinds:
            return self.leaf(self.shape(rank, max(rank, 3)))
        which = self.rng.choice(kinds)
        dtype = "bool" if which == "bool" else self.rng.choice(FLOATS if which == "float" else INTS)
        return self.leaf(self.shape(rank, max(rank, 3)), dtype)

    def beside(self, x: Value, dtype: str = "") -> Value:
        """A value that broadcasts with x (which may have fewer axes or sizes of 1), of its dtype."""
        dtype = dtype or x.dtype
        found = [v for v in self.values if v.dtype == dtype and fits(v.shape, x.shape)]
        if found and self.rng.random() < 0.7:
            return self.rng.choice(found)
        shape = [self.rng.choice((1, d, d, d)) for d in x.shape]
        return self.leaf(shape[self.rng.choice((0, 0, 0, len(shape) // 2)) :], dtype)

    def axis(self, x: Value) -> int:
        if not x.shape:
            raise Unfit
        return self.rng.randrange(len(x.shape))

    def axes(self, x: Value) -> tuple[int, ...]:
        some = tuple(i for i in range(len(x.shape)) if self.rng.random() < 0.5)
        return some or ((self.axis(x),) if x.shape else ())

    # ------------------------------------------------ results
    def made(self, tensor: tg.Tensor, x: Any, e: Any, dtype: str, *of: Value) -> Value:
        """A result as a `Value`. Raises Unfit if it is not finite, or near the limits of its dtype."""
        x = np.asarray(x)
        if x.size > VOLUME or x.ndim > RANK:
            raise Unfit
        if dtype in UNIT:
            x = x.astype(np.float64)
            if x.size and not np.abs(x).max() <= LARGEST[dtype]:
                raise Unfit
            e = bounded(e) + UNIT[dtype] * np.abs(x)
        else:
            x = x.astype(numpy_dtype(dtype), copy=False)
            e = bounded(e)
        if tensor.dtype != dtype or tuple(tensor.shape) != x.shape:
            raise AssertionError(f"the engine types it {tensor.type}, NumPy {dtype}{list(x.shape)}")
        return Value(tensor, x, np.broadcast_to(e, x.shape), dtype, sys._getframe(1).f_code.co_name, of)

    def moved(self, tensor: tg.Tensor, f: Callable[[Array], Array], *of: Value) -> Value:
        """Result of an operation that only moves elements of its first operand; `f`: the same on arrays."""
        x = np.asarray(f(of[0].x))
        if x.size > VOLUME or x.ndim > RANK:
            raise Unfit
        e = np.asarray(f(of[0].e))
        assert tensor.dtype == of[0].dtype and tuple(tensor.shape) == x.shape, (tensor.type, x.shape)
        return Value(tensor, x, e, of[0].dtype, sys._getframe(1).f_code.co_name, of)

    def write(self, steps: int) -> Writer:
        """Append up to `steps` operations; returns the writer itself."""
        names, weights, functions = zip(*STEPS, strict=True)
        for _ in range(self.rng.randint(1, 2)):
            self.leaf(self.shape(1))
        for _ in range(steps):
            for _ in range(8):
                count = len(self.values), dict(self.inputs), dict(self.params)
                try:
                    with np.errstate(all="ignore"):
                        self.keep(self.rng.choices(functions, weights)[0](self))
                    break
                except Unfit:
                    self.skipped += 1
                    del self.values[count[0] :]
                    self.inputs, self.params = count[1], count[2]
        assert names
        return self

    def outputs(self) -> list[Value]:
        """The last value and up to two others that were computed."""
        made = [v for v in self.values if v.made != "leaf"]
        if not made:
            return []
        return list(dict.fromkeys([made[-1], *self.rng.sample(made, min(len(made), self.rng.randint(0, 2)))]))

    def text(self, roots: Sequence[Value]) -> str:
        number: dict[int, int] = {}
        lines: list[str] = []

        def visit(v: Value) -> int:
            if id(v) not in number:
                args = [visit(a) for a in v.of]
                number[id(v)] = len(number)
                attrs = {k: a for k, a in v.tensor.attrs if k not in ("digest", "dtype")}
                lines.append(
                    f"  %{number[id(v)]} = {v.made}({', '.join(f'%{a}' for a in args)}) {attrs} : {v.dtype}{list(v.shape)}"
                )
            return number[id(v)]

        return "\n".join(
            [*(f"  -> %{visit(r)}" for r in roots)][:0] + [f"  outputs {[visit(r) for r in roots]}"] + lines
        )


def fits(a: Sequence[int], b: Sequence[int]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(tuple(a), tuple(b))) <= VOLUME
    except ValueError:
        return False


def doubt(*of: Value) -> Any:
    """Error bound of a result: inf where an integer or boolean operand is undecided, 0 elsewhere."""
    found: Any = 0.0
    for v in of:
        found = found + np.where(v.e > 0, np.inf, 0.0)
    return found


def decided(x: Value, y: Value) -> Array:
    """0 where it is certain which of two values is larger, or that they are equal; inf elsewhere."""
    near = np.abs(x.x.astype(np.float64) - y.x.astype(np.float64)) <= SLACK * (x.e + y.e)
    return np.where(near & (x.e + y.e > 0), np.inf, 0.0)


# ---------------------------------------------------------------- elementwise
@step(10)
def arithmetic(w: Writer) -> Value:
    x = w.some("float", "int")
    y = w.beside(x)
    x, y = w.rng.choice(((x, y), (y, x)))
    which = w.rng.choice(("add", "sub", "mul", "maximum", "minimum"))
    tensor = getattr(tg, which)(x.tensor, y.tensor)
    got = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[which](
        x.x, y.x
    )
    if kind(x.dtype) == "int":
        return w.made(tensor, got, doubt(x, y), x.dtype, x, y)
    if which == "mul":
        e = np.abs(x.x) * y.e + np.abs(y.x) * x.e + x.e * y.e
    elif which in ("add", "sub"):
        e = x.e + y.e + UNIT[x.dtype] * (np.abs(x.x) + np.abs(y.x))
    else:
        return Value(tensor, got, np.maximum(*np.broadcast_arrays(x.e, y.e)), x.dtype, which, (x, y))
    return w.made(tensor, got, e, x.dtype, x, y)


@step(3)
def scaled(w: Writer) -> Value:
    x = w.some("float", "int")
    number = (
        w.rng.choice((0, 1, 2, -1, 3, 7, -5))
        if kind(x.dtype) == "int"
        else w.rng.choice((0.5, 2.0, -1.0, 0.1, 3.0, 1.0, 0.0))
    )
    if x.dtype.startswith("u"):
        number = abs(number)
    which = w.rng.choice(("add", "sub", "mul", "rsub"))
    f = {
        "add": lambda a: a + number,
        "sub": lambda a: a - number,
        "mul": lambda a: a * number,
        "rsub": lambda a: number - a,
    }[which]
    typed = (
        np.asarray(number, numpy_dtype(x.dtype))
        if kind(x.dtype) == "int"
        else np.float64(np.asarray(number, numpy_dtype(x.dtype)))
    )
    g = {
        "add": lambda a: a + typed,
        "sub": lambda a: a - typed,
        "mul": lambda a: a * typed,
        "rsub": lambda a: typed - a,
    }[which]
    e = (
        doubt(x)
        if kind(x.dtype) == "int"
        else (x.e * abs(number) if which == "mul" else x.e + UNIT[x.dtype] * (np.abs(x.x) + abs(number)))
    )
    return w.made(f(x.tensor), g(x.x), e, x.dtype, x)


@step(4)
def division_of_integers(w: Writer) -> Value:
    x = w.some("int")
    y = w.leaf([w.rng.choice((1, d)) for d in x.shape], x.dtype)
    y.x[y.x == 0] = 1
    array = w.inputs.get(f"g{w.seed}_{len(w.inputs) + len(w.params) - 1}")
    if array is None or array is not y.x:
        raise Unfit  # a constant's zeros are not changed afterwards
    if w.rng.random() < 0.5:
        return w.made(tg.floordiv(x.tensor, y.tensor), np.floor_divide(x.x, y.x), doubt(x, y), x.dtype, x, y)
    return w.made(tg.mod(x.tensor, y.tensor), np.mod(x.x, y.x), doubt(x, y), x.dtype, x, y)


@step(3)
def division_by_a_number(w: Writer) -> Value:
    x = w.some("int")
    number = w.rng.choice((1, 2, 3, 7, 8, 100) if x.dtype.startswith("u") else (1, 2, -2, 3, -3, 7, 8, -1, 100))
    typed = np.asarray(number, x.dtype)
    if w.rng.random() < 0.5:
        return w.made(tg.floordiv(x.tensor, number), np.floor_divide(x.x, typed), doubt(x), x.dtype, x)
    return w.made(tg.mod(x.tensor, number), np.mod(x.x, typed), doubt(x), x.dtype, x)


@step(3)
def bits(w: Writer) -> Value:
    x = w.some("int", "bool")
    y = w.beside(x)
    f = w.rng.choice((operator.and_, operator.or_, operator.xor))
    return w.made(f(x.tensor, y.tensor), f(x.x, y.x), doubt(x, y), x.dtype, x, y)


@step(4)
def sign_of(w: Writer) -> Value:
    x = w.some("float", "int")
    which = w.rng.choice(("neg", "abs", "sign"))
    f = {"neg": np.negative, "abs": np.abs, "sign": np.sign}[which]
    if kind(x.dtype) == "int":
        return w.made(getattr(tg, which)(x.tensor), f(x.x), doubt(x), x.dtype, x)
    e = np.where((np.abs(x.x) <= SLACK * x.e) & (x.e > 0), np.inf, 0.0) if which == "sign" else x.e
    return Value(getattr(tg, which)(x.tensor), np.asarray(f(x.x)), e, x.dtype, which, (x,))


@step(6)
def function(w: Writer) -> Value:
    x = w.some("float")
    u = UNIT[x.dtype]
    a, e = x.x, x.e
    top = np.abs(a).max(initial=0.0)
    which = w.rng.choice(
        ("exp", "tanh", "sin", "cos", "atan", "sigmoid", "relu", "sqrt", "log", "square", "expm1", "log1p", "erf")
    )
    if which in ("exp", "expm1", "sin", "cos") and top > 9:
        raise Unfit
    if (which in ("sqrt", "log") and a.min(initial=1.0) < 0.05) or (which == "log1p" and a.min(initial=1.0) < -0.9):
        raise Unfit
    err = np.vectorize(math.erf, otypes=[np.float64])
    table: dict[str, tuple[Callable[[Array], Array], Callable[[], Any]]] = {
        "exp": (np.exp, lambda: np.exp(a) * np.expm1(e) + 4 * u * np.exp(a)),
        "expm1": (np.expm1, lambda: np.exp(a) * np.expm1(e) + 4 * u * np.abs(np.expm1(a))),
        "tanh": (np.tanh, lambda: e + 4 * u), "atan": (np.arctan, lambda: e + 4 * u), "erf": (err, lambda: 1.2 * e + 4 * u),
        "sin": (np.sin, lambda: e + 4 * u * (1 + np.abs(a))), "cos": (np.cos, lambda: e + 4 * u * (1 + np.abs(a))),
        "sigmoid": (lambda v: 1 / (1 + np.exp(-v)), lambda: e + 4 * u), "relu": (lambda v: np.maximum(v, 0.0), lambda: e),
        "sqrt": (np.sqrt, lambda: e / np.sqrt(a)), "log": (np.log, lambda: 2 * e / a + 4 * u),
        "log1p": (np.log1p, lambda: 20 * e + 4 * u * np.abs(a)), "square": (np.square, lambda: 2 * np.abs(a) * e + e * e),
    }  # fmt: skip
    f, bound = table[which]
    if which in ("sqrt", "log", "log1p") and (e > 0.02).any():
        raise Unfit
    made = w.made(getattr(tg, which)(x.tensor), f(a), bound(), x.dtype, x)
    made.made = which
    return made


@step(3)
def quotient(w: Writer) -> Value:
    x = w.some("float")
    y = w.beside(x)
    if (np.abs(y.x) < 0.1).any() or (y.e > 0.01).any():
        raise Unfit
    e = (x.e + np.abs(x.x / y.x) * y.e) / np.abs(y.x)
    return w.made(tg.div(x.tensor, y.tensor), x.x / y.x, 2 * e + 4 * UNIT[x.dtype] * np.abs(x.x / y.x), x.dtype, x, y)


@step(3)
def whole(w: Writer) -> Value:
    x = w.some("float")
    which, f = w.rng.choice((("floor", np.floor), ("ceil", np.ceil), ("round", np.rint)))
    e = np.where((f(x.x - SLACK * x.e) != f(x.x + SLACK * x.e)) | ~np.isfinite(x.e), np.inf, 0.0)
    return Value(getattr(tg, which)(x.tensor), np.asarray(f(x.x)), e, x.dtype, which, (x,))


@step(5)
def comparison(w: Writer) -> Value:
    x = w.some()
    y = w.beside(x)
    which, f = w.rng.choice((("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal), ("gt", np.greater),
                             ("ge", np.greater_equal)))  # fmt: skip
    e = decided(x, y) if kind(x.dtype) == "float" else doubt(x, y)
    return w.made(getattr(tg, which)(x.tensor, y.tensor), f(x.x, y.x), e, "bool", x, y)


@step(1)
def negation(w: Writer) -> Value:
    x = w.some("bool")
    return w.made(tg.logical_not(x.tensor), ~x.x, doubt(x), "bool", x)


@step(5)
def select(w: Writer) -> Value:
    c, x = w.some("bool"), w.some()
    y = w.beside(x)
    if not fits(np.broadcast_shapes(x.shape, y.shape), c.shape):
        raise Unfit
    e = np.where(c.e > 0, np.inf, np.where(c.x, x.e, y.e))
    same = x.x == y.x  # either way
    e = np.where(np.broadcast_to(same, e.shape), np.maximum(*np.broadcast_arrays(x.e, y.e)), e)
    return w.made(tg.where(c.tensor, x.tensor, y.tensor), np.where(c.x, x.x, y.x), e, x.dtype, c, x, y)


@step(6)
def cast(w: Writer) -> Value:
    x = w.some()
    to = w.dtype()
    if to == x.dtype:
        raise Unfit
    tensor = tg.cast(x.tensor, to)
    if kind(x.dtype) == "float" and kind(to) == "int":
        info = np.iinfo(to)
        if x.x.size and (x.x.min() < info.min + 1 or x.x.max() > float(info.max) * 0.99):
            raise Unfit
        moved = np.trunc(x.x - SLACK * x.e) != np.trunc(x.x + SLACK * x.e)
        return w.made(tensor, np.trunc(x.x).astype(to), np.where(moved | ~np.isfinite(x.e), np.inf, 0.0), to, x)
    if kind(x.dtype) == "float" and to == "bool":
        return w.made(tensor, x.x != 0, np.where((np.abs(x.x) <= SLACK * x.e) & (x.e > 0), np.inf, 0.0), to, x)
    if to in UNIT and kind(x.dtype) == "float":
        e = x.e + UNIT[to] * np.abs(x.x)
        return w.made(tensor, x.x, e, to, x)
    if to in UNIT:
        wide = x.x.astype(np.float64)
        return w.made(tensor, wide, doubt(x) + UNIT[to] * np.abs(wide), to, x)
    return w.made(tensor, x.x.astype(numpy_dtype(to)), doubt(x), to, x)


# ---------------------------------------------------------------- reductions
@step(6)
def total(w: Writer) -> Value:
    x = w.some(rank=1)
    axes, keep = w.axes(x), w.rng.random() < 0.5
    tensor = tg.sum(x.tensor, axes, keep)
    if x.dtype not in UNIT:
        to = "uint64" if x.dtype.startswith("u") else "int64"
        return w.made(
            tensor,
            np.sum(x.x, axis=axes, keepdims=keep, dtype=to),
            np.sum(doubt(x) + np.zeros(x.shape), axis=axes, keepdims=keep),
            to,
            x,
        )
    n = math.prod(x.shape[a] for a in axes)
    e = np.sum(x.e + n * UNIT[x.dtype] * np.abs(x.x), axis=axes, keepdims=keep)
    return w.made(tensor, np.sum(x.x, axis=axes, keepdims=keep), e, x.dtype, x)


@step(2)
def product(w: Writer) -> Value:
    x = w.some("int", rank=1)
    axes, keep = w.axes(x), w.rng.random() < 0.5
    to = "uint64" if x.dtype.startswith("u") else "int64"
    e = np.sum(doubt(x) + np.zeros(x.shape), axis=axes, keepdims=keep)
    return w.made(tg.prod(x.tensor, axes, keep), np.prod(x.x, axis=axes, keepdims=keep, dtype=to), e, to, x)


@step(4)
def extreme(w: Writer) -> Value:
    x = w.some(rank=1)
    axes, keep = w.axes(x), w.rng.random() < 0.5
    which, f = w.rng.choice((("max", np.max), ("min", np.min)))
    e = np.max(x.e, axis=axes, keepdims=keep)
    return Value(
        getattr(tg, which)(x.tensor, axes, keep),
        np.asarray(f(x.x, axis=axes, keepdims=keep)),
        np.asarray(e),
        x.dtype,
        which,
        (x,),
    )


@step(3)
def average(w: Writer) -> Value:
    x = w.some("float", rank=1)
    axes, keep = w.axes(x), w.rng.random() < 0.5
    n = math.prod(x.shape[a] for a in axes)
    e = np.mean(x.e + n * UNIT[x.dtype] * np.abs(x.x), axis=axes, keepdims=keep)
    return w.made(tg.mean(x.tensor, axes, keep), np.mean(x.x, axis=axes, keepdims=keep), e, x.dtype, x)


@step(2)
def variance(w: Writer) -> Value:
    x = w.some("float", rank=1)
    axes = w.axes(x)
    n = math.prod(x.shape[a] for a in axes)
    centre = x.x - x.x.mean(axis=axes, keepdims=True)
    each = x.e + n * UNIT[x.dtype] * np.abs(x.x)
    spread = each + each.mean(axis=axes, keepdims=True)
    e = np.mean(2 * np.abs(centre) * spread + spread**2 + n * UNIT[x.dtype] * (centre**2), axis=axes)
    return w.made(tg.var(x.tensor, axes), np.var(x.x, axis=axes), 4 * e, x.dtype, x)


@step(3)
def softmax(w: Writer) -> Value:
    x = w.some("float", rank=1)
    axis = w.axis(x)
    y = np.exp(x.x - x.x.max(axis=axis, keepdims=True))
    y = y / y.sum(axis=axis, keepdims=True)
    n, u = x.shape[axis], UNIT[x.dtype]
    worst = (x.e + 2 * u * np.abs(x.x)).max(axis=axis, keepdims=True)
    log = w.rng.random() < 0.3
    if log:
        e = 4 * worst + (n + 6) * u * (1 + np.abs(np.log(y)))
        return w.made(tg.log_softmax(x.tensor, axis), np.log(y), e, x.dtype, x)
    return w.made(tg.softmax(x.tensor, axis), y, y * (4 * worst + (n + 6) * u), x.dtype, x)


@step(3)
def running(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    tensor = tg.cumsum(x.tensor, axis)
    if x.dtype not in UNIT:
        to = "uint64" if x.dtype.startswith("u") else "int64"
        return w.made(
            tensor, np.cumsum(x.x, axis=axis, dtype=to), np.cumsum(doubt(x) + np.zeros(x.shape), axis=axis), to, x
        )
    e = np.cumsum(x.e + x.shape[axis] * UNIT[x.dtype] * np.abs(x.x), axis=axis)
    return w.made(tensor, np.cumsum(x.x, axis=axis), e, x.dtype, x)


@step(3)
def place_of_extreme(w: Writer) -> Value:
    x = w.some(rank=1)
    axis, keep = w.axis(x), w.rng.random() < 0.5
    which, f = w.rng.choice((("argmax", np.argmax), ("argmin", np.argmin)))
    at = np.expand_dims(f(x.x, axis=axis), axis)
    best = np.take_along_axis(x.x, at, axis).astype(np.float64)
    near = np.abs(x.x.astype(np.float64) - best) <= SLACK * (
        x.e + np.take_along_axis(np.ascontiguousarray(x.e), at, axis)
    )
    there = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.x.ndim)]) == at
    e = np.where(
        (near & ~there & ((x.e > 0) | np.any((x.e > 0) & there, axis, keepdims=True))).any(axis, keepdims=True),
        np.inf,
        0.0,
    )
    e = e if x.dtype in UNIT else np.max(doubt(x) + np.zeros(x.shape), axis=axis, keepdims=True)
    at, e = (at, e) if keep else (np.squeeze(at, axis), np.squeeze(e, axis))
    return w.made(getattr(tg, which)(x.tensor, axis, keep), at, e, "int64", x)


@step(3)
def order(w: Writer) -> Value:
    x = w.some("float", "int", rank=1)
    axis, down = w.axis(x), w.rng.random() < 0.4
    line = x.x if x.dtype in UNIT else x.x.astype(object)
    at = np.argsort(-line if down else line, axis=axis, kind="stable")
    ordered, bound = np.take_along_axis(x.x, at, axis), np.take_along_axis(np.ascontiguousarray(x.e), at, axis)
    if x.dtype in UNIT:
        gaps, pairs = (
            np.abs(np.diff(ordered, axis=axis)),
            SLACK * (np.delete(bound, 0, axis) + np.delete(bound, -1, axis)),
        )
        e = np.where(((gaps <= pairs) & (pairs > 0)).any(axis=axis, keepdims=True), np.inf, 0.0)
    else:
        e = np.max(doubt(x) + np.zeros(x.shape), axis=axis, keepdims=True)
    return w.made(tg.argsort(x.tensor, axis, down), at, np.broadcast_to(e, at.shape), "int64", x)


# ---------------------------------------------------------------- contractions
@step(6)
def matmul(w: Writer) -> Value:
    x = w.some("float", "int", rank=1)
    k = x.shape[-1]
    found = [
        v for v in w.values if v.dtype == x.dtype and len(v.shape) >= 1 and v.shape[-2 if len(v.shape) > 1 else 0] == k
    ]
    y = w.rng.choice(found) if found and w.rng.random() < 0.6 else w.leaf((k, w.rng.choice(SIZES)), x.dtype)
    try:
        shape = np.empty(x.shape, np.bool_).__matmul__(np.empty(y.shape, np.bool_)).shape
    except ValueError:
        raise Unfit from None
    if math.prod(shape) > VOLUME or len(shape) > RANK:
        raise Unfit
    got = np.matmul(x.x, y.x)
    if kind(x.dtype) == "int":
        unsure = np.matmul((x.e > 0).astype(np.float64), np.ones(y.shape)) + np.matmul(
            np.ones(x.shape), (y.e > 0).astype(np.float64)
        )
        return w.made(tg.matmul(x.tensor, y.tensor), got, np.where(unsure > 0, np.inf, 0.0), x.dtype, x, y)
    a, b = np.abs(x.x), np.abs(y.x)
    e = np.matmul(a, y.e) + np.matmul(x.e, b) + np.matmul(x.e, y.e) + k * UNIT[x.dtype] * np.matmul(a, b)
    return w.made(tg.matmul(x.tensor, y.tensor), got, e, x.dtype, x, y)


@step(2)
def convolution(w: Writer) -> Value:
    n, c, size = w.rng.choice((1, 2)), w.rng.choice((1, 2, 3)), w.rng.choice((3, 5, 6))
    dtype = w.rng.choice(FLOATS)
    found = [v for v in w.values if len(v.shape) == 3 and kind(v.dtype) == "float"]
    x = w.rng.choice(found) if found else w.leaf((n, c, size), dtype)
    taps, stride, pad = w.rng.randint(1, 3), w.rng.randint(1, 2), w.rng.randint(0, 2)
    if x.shape[2] + 2 * pad < taps or 0 in x.shape:
        raise Unfit
    y = w.leaf((w.rng.choice((1, 2, 4)), x.shape[1], taps), x.dtype)

    def conv(a: Array, b: Array) -> Array:
        wide = np.pad(a, ((0, 0), (0, 0), (pad, pad)))
        at = range(0, wide.shape[2] - taps + 1, stride)
        return np.stack([np.tensordot(wide[:, :, i : i + taps], b, ((1, 2), (1, 2))) for i in at], axis=2)

    a, b = np.abs(x.x), np.abs(y.x)
    e = conv(a, y.e) + conv(x.e, b) + conv(x.e, y.e) + taps * x.shape[1] * UNIT[x.dtype] * conv(a, b)
    tensor = tg.conv(x.tensor, y.tensor, strides=(stride,), pads=(pad, pad))
    return w.made(tensor, conv(x.x, y.x), e, x.dtype, x, y)


# ---------------------------------------------------------------- views
@step(5)
def reshaped(w: Writer) -> Value:
    x = w.some()
    rest, shape = x.x.size, []
    if not rest:
        raise Unfit
    for d in (2, 2, 2, 3, 3, 5, 7):
        if rest % d == 0 and w.rng.random() < 0.5:
            shape.append(d)
            rest //= d
    shape.insert(w.rng.randint(0, len(shape)), rest)
    while len(shape) > 4:
        shape = [shape[0] * shape[1], *shape[2:]]
    return w.moved(tg.reshape(x.tensor, shape), lambda v: np.reshape(v, shape), x)


@step(5)
def permuted(w: Writer) -> Value:
    x = w.some(rank=2)
    perm = w.rng.sample(range(len(x.shape)), len(x.shape))
    return w.moved(tg.permute(x.tensor, perm), lambda v: np.transpose(v, perm), x)


@step(5)
def sliced(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    n = x.shape[axis]
    start = w.rng.randrange(max(n, 1))
    stop, by = w.rng.randint(start, n), w.rng.choice((1, 1, 2, 3))
    if start == stop:
        raise Unfit
    key = (slice(None),) * axis + (slice(start, stop, by),)
    return w.moved(tg.slice_axis(x.tensor, axis, start, stop, by), lambda v: v[key], x)


@step(2)
def flipped(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    return w.moved(tg.flip(x.tensor, axis), lambda v: np.flip(v, axis), x)


@step(3)
def widened(w: Writer) -> Value:
    x = w.some()
    shape = tuple(w.rng.choice((2, 3, 4)) if d == 1 else d for d in x.shape)
    if shape == x.shape:
        raise Unfit
    return w.moved(tg.broadcast_to(x.tensor, shape), lambda v: np.broadcast_to(v, shape), x)


@step(4)
def joined(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    found = [v for v in w.values if v.dtype == x.dtype and len(v.shape) == len(x.shape)
             and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape)) if i != axis)]  # fmt: skip
    y = w.rng.choice(found)
    both = [np.concatenate(p, axis) for p in ((x.x, y.x), (x.e, y.e))]
    if both[0].size > VOLUME:
        raise Unfit
    return Value(tg.concat([x.tensor, y.tensor], axis), both[0], both[1], x.dtype, "joined", (x, y))


@step(3)
def padded(w: Writer) -> Value:
    x = w.some("float", "int", rank=1)
    axis = w.axis(x)
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (w.rng.randint(0, 2), w.rng.randint(0, 2))
    value = w.rng.choice((0.0, 0.0, 1.0, 2.0))
    if widths[axis] == (0, 0):
        raise Unfit
    got = np.pad(x.x, widths, constant_values=np.asarray(value).astype(x.x.dtype))
    if got.size > VOLUME:
        raise Unfit
    return Value(tg.pad(x.tensor, widths, value), got, np.pad(x.e, widths), x.dtype, "padded", (x,))


@step(2)
def windowed(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    size, by = w.rng.randint(1, 3), w.rng.randint(1, 2)
    if x.shape[axis] < size or len(x.shape) >= RANK:
        raise Unfit
    at = [range(i, i + size) for i in range(0, x.shape[axis] - size + 1, by)]

    def f(v: Array) -> Array:
        return np.moveaxis(np.stack([np.take(v, list(r), axis) for r in at], axis=axis), axis + 1, -1)

    return w.moved(tg.windows(x.tensor, axis, size, by), f, x)


# ---------------------------------------------------------------- indices
def _index(w: Writer, shape: Sequence[int], size: int, *, signed: bool) -> Value:
    dtype = w.rng.choice(("int64", "int64", "int32") if signed else ("int64", "int32", "uint8"))
    if dtype == "uint8" and size > 255:
        raise Unfit
    return w.leaf(shape, dtype, w.numbers(shape, dtype, -size if signed else 0, size))


@step(4)
def taken(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    if not x.shape[axis]:
        raise Unfit
    index = _index(w, w.shape(0, 2), x.shape[axis], signed=False)
    at = index.x.astype(np.int64)
    if x.x.size // x.shape[axis] * at.size > VOLUME:
        raise Unfit
    return w.moved(tg.gather(x.tensor, index.tensor, axis), lambda v: np.take(v, at, axis), x, index)


@step(3)
def taken_along(w: Writer) -> Value:
    x = w.some(rank=1)
    axis = w.axis(x)
    size = x.shape[axis]
    if not size:
        raise Unfit
    index = _index(w, [w.rng.choice((1, 2, 4)) if i == axis else d for i, d in enumerate(x.shape)], size, signed=True)
    at = index.x.astype(np.int64) % size
    return w.moved(
        tg.gather_elements(x.tensor, index.tensor, axis),
        lambda v: np.take_along_axis(np.ascontiguousarray(v), at, axis),
        x,
        index,
    )


@step(3)
def scattered(w: Writer) -> Value:
    x = w.some("float", "int", rank=1)
    axis = w.axis(x)
    size = x.shape[axis]
    if not size or not x.x.size:
        raise Unfit
    mode = w.rng.choice(("set", "add", "max", "min"))
    shape = [w.rng.randint(1, size) if i == axis else d for i, d in enumerate(x.shape)]
    one = w.draw.permuted(
        np.broadcast_to(np.arange(size).reshape([-1 if i == axis else 1 for i in range(len(shape))]), x.shape),
        axis=axis,
    )
    at = np.take(one, range(shape[axis]), axis) if mode == "set" else w.draw.integers(0, size, shape)
    signed = np.where(w.draw.random(at.shape) < 0.3, at - size, at)
    index = w.leaf(shape, "int64", signed.astype(np.int64))
    y = w.leaf(shape, x.dtype)
    spot = tuple(at if i == axis else g for i, g in enumerate(np.ogrid[tuple(slice(n) for n in shape)]))
    out, e = x.x.copy(), np.array(x.e)
    if mode == "set":
        out[spot], e[spot] = y.x, y.e
    else:
        {"add": np.add, "max": np.maximum, "min": np.minimum}[mode].at(out, spot, y.x)
        if mode == "add" and x.dtype in UNIT:
            np.add.at(e, spot, UNIT[x.dtype] * shape[axis] * (np.abs(y.x) + np.abs(x.x).max()))
    tensor = tg.scatter_elements(x.tensor, index.tensor, y.tensor, axis, mode)
    if mode == "add":
        return w.made(tensor, out, e, x.dtype, x, index, y)
    return Value(tensor, out, e, x.dtype, f"scattered {mode}", (x, index, y))


# ---------------------------------------------------------------- what must hold
def wrong(found: Any, want: Value) -> str:
    """Description of the error of a result; '' if it is within its bound."""
    found = np.asarray(found)
    if found.shape != want.shape or found.dtype != numpy_dtype(want.dtype):
        return f"{found.dtype}{list(found.shape)} for {want.dtype}{list(want.shape)}"
    with np.errstate(all="ignore"):
        if want.dtype in UNIT:
            gap = np.abs(found.astype(np.float64) - want.x)
            bad = ~(gap <= SLACK * want.e + 8 * UNIT[want.dtype] * np.abs(want.x) + LEAST.get(want.dtype, 1e-37))
        else:
            bad = (found != want.x) & (want.e == 0)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} places differ, at {at} {found[at]!r} for {want.x[at]!r} (bound {want.e[at]:.3g})"


CONFIGURATIONS: list[dict[str, Any]] = [
    {"backend": "numpy"}, {"backend": "torch"}, {"backend": "c"}, {"backend": "auto"}, {"backend": "numpy", "tolerance": "exact"},
    {"backend": "c", "effort": 0}, {"backend": "torch", "effort": 0}, {"backend": "c", "tolerance": "fast"},
]  # fmt: skip


def compiled(
    writers: Sequence[Writer], roots: Sequence[list[Value]], options: dict[str, Any], *, verify: bool
) -> list[str]:
    """For each program a description of its error ('' for none); all are compiled in one call of `optimize`."""
    outputs = {f"g{w.seed}.{i}": v.tensor for w, values in zip(writers, roots) for i, v in enumerate(values)}
    params = {n: a for w in writers for n, a in w.params.items()}
    values = {n: a for w in writers for n, a in w.inputs.items()}
    used = tg.Graph.of(outputs)
    params = {str(n.attr("name")): params[str(n.attr("name"))] for n in used.leaves("param")}
    made = tg.optimize(
        outputs, params=params, measure=False, budget=20.0, verify=verify, again=True,
        limits=Limits(nodes=2000, iterations=3, seconds=4.0), **options,
    )  # fmt: skip
    if made.report.verification and made.report.verification["dropped"]:
        print(f"verified without {made.report.verification['dropped']}: seeds from {writers[0].seed}", flush=True)
    with np.errstate(all="ignore"):
        results = made(**{n: values[n] for n in made.input_names}) if made.input_names else made()
    return [
        "; ".join(s for i, v in enumerate(found) if (s := wrong(results[f"g{w.seed}.{i}"], v)))
        for w, found in zip(writers, roots)
    ]  # fmt: skip


def attempted(
    writers: Sequence[Writer], roots: Sequence[list[Value]], options: dict[str, Any], *, verify: bool = False
) -> Iterator[tuple[int, str]]:
    """(seed, what is wrong) of programs that fail; those compiled together where that raises, each by itself."""
    try:
        for w, message in zip(writers, compiled(writers, roots, options, verify=verify)):
            if message:
                yield w.seed, message
    except Exception as error:
        if len(writers) == 1:
            yield writers[0].seed, f"raised {type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            return
        half = len(writers) // 2
        for part in (slice(0, half), slice(half, None)):
            yield from attempted(writers[part], roots[part], options, verify=verify)


def batch(
    first: int,
    count: int,
    steps: int,
    options: dict[str, Any],
    *,
    verify: bool = False,
    seen: Counter[str] | None = None,
) -> list[tuple[int, str]]:
    """The failures among programs of consecutive seeds."""
    writers, roots = [], []
    for seed in range(first, first + count):
        w = Writer(seed).write(steps)
        if found := w.outputs():
            writers.append(w)
            roots.append(found)
            if seen is not None:
                seen.update(f"{v.made} {kind(v.dtype)}" for v in w.values if v.made != "leaf")
                seen["places"] += sum(v.x.size for v in found)
                seen["places that either value fits"] += sum(int(np.isinf(v.e).sum()) for v in found)
                seen["programs"] += 1
                seen["outputs"] += len(found)
    return list(attempted(writers, roots, options, verify=verify))


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=40)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--verify", type=int, default=10, help="verify every so manieth batch")
    parser.add_argument("--configuration", type=int, default=-1)
    parser.add_argument("--once", action="store_true", help="this seed alone, with its text")
    parser.add_argument("--log", default="")
    given = parser.parse_args()
    if given.once:
        w = Writer(given.seed).write(given.steps)
        roots = w.outputs()
        print(w.text(roots))
        for options in [CONFIGURATIONS[given.configuration]] if given.configuration >= 0 else CONFIGURATIONS:
            print(options, list(attempted([w], [roots], options)))
        return
    seen: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    start, cpu = time.monotonic(), time.process_time()
    for number, first in enumerate(range(given.seed, given.seed + given.graphs, given.together)):
        which = (first // given.together) % len(CONFIGURATIONS) if given.configuration < 0 else given.configuration
        count = min(given.together, given.seed + given.graphs - first)
        found = batch(
            first,
            count,
            given.steps,
            CONFIGURATIONS[which],
            verify=number % given.verify == given.verify - 1,
            seen=seen,
        )
        for seed, message in found:
            failures.append({"seed": seed, "configuration": which, "message": message[:600]})
            print(f"=== seed {seed} configuration {which} {CONFIGURATIONS[which]}\n{message[:1500]}", flush=True)
        if given.log and number % 5 == 4:
            note = {
                "from": given.seed,
                "to": first + count,
                "failures": len(failures),
                "seconds": round(time.monotonic() - start),
            }
            Path(given.log).write_text(
                json.dumps({**note, "seen": dict(seen), "failed": failures}, indent=1), encoding="utf-8"
            )
    print(f"{seen['programs']} programs, {seen['outputs']} outputs, {seen['places']} places "
          f"({seen['places that either value fits']} that rounding decides), seeds {given.seed} to {given.seed + given.graphs - 1}, "
          f"{len(failures)} failures, {time.monotonic() - start:.0f} s, {time.process_time() - cpu:.0f} CPU s here")  # fmt: skip
    for name, count in sorted(seen.items()):
        print(f"{count:>8} {name}")


if __name__ == "__main__":
    main()
