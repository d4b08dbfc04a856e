"""Random Python functions of NumPy arrays, traced: they must give what they give untraced, or raise a named error.

`python -m tests.fuzz.numpy_functions [--count N] [--seed S] [--optimized K]` writes functions as source text, of
operators, ufuncs and their methods, functions and methods of arrays, indices, assignments and Python control flow.
NumPy alone decides what is right: the source is run on arrays in the inputs' dtypes and, where floats differ, on
float64 ones. Every K-th function goes through `optimize(..., measure=False)` as a whole, the others through tracing and
the interpreter. The generator knows nothing of the tracer.
"""

from __future__ import annotations

import argparse
import random
import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.models.functions.trace import trace

DTYPES = (
    ("float32",) * 6
    + ("float64",) * 3
    + ("float16", "int64", "int64", "int32", "int32", "int8", "uint8", "int16", "uint32", "bool")
)
SHAPES = [(4,), (3,), (1,), (2, 3), (3, 4), (4, 4), (1, 3), (3, 1), (2, 3, 4), (), (2, 1, 4), (5, 2)]
UNARY = ["-{}", "+{}", "abs({})", "~{}"]
BINARY = ["{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "{} == {}", "{} != {}", "{} < {}", "{} >= {}",
          "{} & {}", "{} | {}", "{} ^ {}", "{} << {}", "{} >> {}", "{} @ {}", "divmod({}, {})[0]"]  # fmt: skip
UFUNCS1 = [
    "exp",
    "log",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "arctan",
    "arcsin",
    "sinh",
    "cosh",
    "arcsinh",
    "floor",
    "ceil",
    "rint",
    "trunc",
    "sign",
    "square",
    "reciprocal",
    "cbrt",
    "expm1",
    "log1p",
    "log2",
    "log10",
    "exp2",
    "absolute",
    "fabs",
    "negative",
    "positive",
    "invert",
    "logical_not",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "deg2rad",
    "degrees",
    "conjugate",
]
UFUNCS2 = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "true_divide",
    "floor_divide",
    "remainder",
    "mod",
    "fmod",
    "power",
    "float_power",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "arctan2",
    "hypot",
    "copysign",
    "heaviside",
    "logaddexp",
    "logaddexp2",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "matmul",
    "vecdot",
]
POWERS = ("power", "float_power")  # of numbers only: they make large errors of roundings in arrays
REDUCE = [
    "add",
    "multiply",
    "maximum",
    "minimum",
    "logical_and",
    "logical_or",
    "subtract",
    "bitwise_or",
    "logical_xor",
    "fmax",
]
NUMBERS = ["2", "-1", "0", "3", "0.5", "-1.5", "2.0", "1e-3", "True", "np.float32(1.5)", "np.float64(0.25)", "np.int64(3)", "np.int8(2)",
           "300", "7", "1", "1.0"]  # fmt: skip
REDUCTIONS = [
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "std",
    "var",
    "all",
    "any",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "ptp",
    "median",
    "nansum",
    "nanmax",
    "nanmean",
    "count_nonzero",
    "average",
]
METHODS = ["sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "argmax", "argmin", "cumsum", "cumprod"]
TARGETS = ["float32", "float64", "int32", "int64", "int8", "uint8", "bool", "float16"]


@dataclass
class Writer:
    """Writes one function: its arguments, statements and result. `known` has the value of each name for the inputs that
    are drawn, so that what NumPy itself refuses is seldom written."""

    rng: random.Random
    arguments: dict[str, np.ndarray] = field(default_factory=dict)
    captured: dict[str, np.ndarray] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)

    def array(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        draw = np.random.default_rng(self.rng.randrange(1 << 30))
        if dtype == "bool":
            return np.asarray(draw.random(shape) < 0.5)
        if dtype.startswith("float"):
            return np.asarray(draw.standard_normal(shape) * self.rng.choice([1.0, 1.0, 3.0])).round(2).astype(dtype)
        low, high = (0, 9) if dtype.startswith("u") else (-5, 9)
        if self.rng.random() < 0.1:
            low, high = np.iinfo(dtype).min // 2, np.iinfo(dtype).max // 2
        return np.asarray(draw.integers(low, high, shape)).astype(dtype)

    def name(self) -> str:
        return self.rng.choice(list(self.known))

    def arr(self) -> str:
        return self.rng.choice([n for n, v in self.known.items() if isinstance(v, np.ndarray)] or list(self.known))

    def operand(self) -> str:
        return self.rng.choice(NUMBERS) if self.rng.random() < 0.3 else self.name()

    def axis(self, name: str) -> str:
        rank = np.ndim(self.known[name])
        picks = ["None"] + [str(i) for i in range(-rank, rank)] * 2 + (["(0, 1)", "(-1, 0)"] if rank > 1 else [])
        return self.rng.choice(picks)

    def index(self, name: str) -> str:
        r, shape = self.rng, np.shape(self.known[name])
        parts = []
        for size in shape[: r.randint(0, len(shape))]:
            parts.append(r.choice([
                ":", "::-1", "1:", ":-1", "::2", "-1", "0", "None, :", f"{r.randint(-size, max(size - 1, 0))}", "5:1:-1", "[0, -1]",
                "np.array([0, 0])", f"np.arange({size}) % 2 == 0", "np.int64(0)", "1:1", f"[{', '.join(['True'] * size)}]",
            ]))  # fmt: skip
        if r.random() < 0.2:
            parts.insert(r.randint(0, len(parts)), "...")
        ints = [n for n, v in self.known.items() if isinstance(v, np.ndarray) and v.dtype.kind in "iu" and v.ndim]
        if ints and shape and r.random() < 0.15:
            parts = [f"np.abs({r.choice(ints)}) % {shape[0]}", *parts[1:]]
        return ", ".join(parts) or "..."

    def expression(self) -> str:
        r = self.rng
        x, kind = self.arr(), r.randrange(24)
        rank = np.ndim(self.known[x])
        if kind < 5:
            return (
                r.choice(BINARY).format(self.name(), self.operand())
                if r.random() < 0.6
                else r.choice(BINARY).format(self.operand(), self.name())
            )
        if kind == 5:
            return r.choice(UNARY).format(x)
        if kind < 8:
            name = r.choice(UFUNCS1)  # a NaN has no sign that is defined
            return f"np.signbit(np.nan_to_num({x}))" if name == "signbit" else f"np.{name}({x})"
        if kind < 10:
            extra = r.choice(
                [""] * 5 + [", dtype=np.float64", ", casting='same_kind'", f", where={x} > 0, out=np.zeros_like({x})"]
            )
            name = r.choice(UFUNCS2)
            if name in POWERS or r.random() < 0.1:
                return r.choice(
                    [
                        f"{x} ** {r.choice(NUMBERS)}",
                        f"{r.choice(NUMBERS)} ** {x}",
                        f"np.{r.choice(POWERS)}({x}, {r.choice(NUMBERS)})",
                    ]
                )
            return f"np.{name}({self.name()}, {self.operand()}{extra})"
        if kind == 10:
            extra = r.choice(["", "", ", keepdims=True", ", dtype=np.float64", ", initial=2", f", where={x} != 0"])
            axis = self.axis(x)
            return f"np.{r.choice(REDUCE)}.reduce({x}, axis={axis}{extra})"
        if kind == 11:
            return r.choice([f"np.{r.choice(REDUCE)}.accumulate({x}, axis={r.randrange(max(rank, 1))})",
                             f"np.{r.choice(UFUNCS2[:9])}.outer({x}, {self.operand()})"])  # fmt: skip
        if kind < 14:
            extra = r.choice(["", "", ", keepdims=True"])
            if r.random() < 0.5:
                return f"np.{r.choice(REDUCTIONS)}({x}, axis={self.axis(x)}{extra})"
            return f"{x}.{r.choice(METHODS)}({self.axis(x)}{extra})"
        if kind < 17:
            return f"{x}[{self.index(x)}]"
        if kind == 17:
            return f"{x}.astype(np.{r.choice(TARGETS)})"
        if kind < 20:
            size = np.size(self.known[x])
            return r.choice([
                f"{x}.reshape(-1)", f"{x}.ravel()", f"{x}.T", f"np.expand_dims({x}, 0)", f"{x}.reshape(1, {size})", f"np.flip({x})",
                f"np.roll({x}, {r.randint(-3, 3)})", f"np.repeat({x}, 2)", f"np.tile({x}, 2)", f"np.squeeze({x})", f"{x}.flatten()",
                f"np.swapaxes({x}, 0, -1)", f"np.moveaxis({x}, 0, -1)", f"np.broadcast_to({x}, (2,) + {x}.shape)", f"np.pad({x}, 1)",
                f"np.pad({x}, 2, mode='edge')", f"np.atleast_2d({x})", f"np.split({x}, 2)[0]", f"np.array_split({x}, 2)[-1]",
                f"np.rot90({x})", f"np.diag({x})", f"np.tril({x})", f"np.diagonal({x})", f"np.hstack([{x}, {x}])", f"{x}.copy()",
                f"np.transpose({x})", f"np.vstack([{x}, {x}])", f"np.fliplr({x})", f"{x}.squeeze()", f"np.triu({x}, 1)",
            ])  # fmt: skip
        a, b = self.arr(), self.arr()
        return r.choice([
            f"np.where({x} > {self.operand()}, {a}, {self.operand()})", f"np.concatenate([{a}, {b}])", f"np.stack([{a}, {b}], axis=-1)",
            f"np.clip({x}, {self.operand()}, {self.operand()})", f"np.dot({a}, {b})", f"np.einsum('i...,i...->...', {a}, {b})",
            f"np.sort({x})", f"np.argsort({x}, kind='stable')", f"np.take({x}, [0, -1], axis=0)", f"np.diff({x})", f"np.outer({a}, {b})",
            f"np.linalg.norm({x})", f"np.cumsum({x}, axis=-1)", f"np.trace({x})", f"np.inner({a}, {b})", f"np.tensordot({a}, {b}, 1)",
            f"np.percentile({x}, 30)", f"np.nan_to_num({x})", f"np.round({x}, 1)", f"np.isclose({a}, {b})", f"np.kron({a}, {b})",
            f"np.zeros_like({x})", f"np.full_like({x}, 3)", f"np.ones_like({x}, dtype=float)", f"np.isin({x}, [0, 1, 2])",
            f"np.linalg.norm({x}, axis=0)", f"np.average({x}, weights=np.abs({x}) + 1)", f"np.select([{x} > 1, {x} < 0], [{a}, {b}], 5)",
            f"np.searchsorted([-1, 0, 2], {x})", f"np.convolve({a}, [1, 2, 3])", f"np.column_stack([{a}, {b}])", f"np.vdot({a}, {b})",
            f"np.append({a}, {b})", f"np.array_equal({a}, {b})", f"np.unique({x})", f"np.nonzero({x})[0]", f"np.histogram({x})[0]",
            f"np.linalg.inv({x})", f"{x}.tolist()", f"float({x}.sum())", f"np.asarray({x}) + 1", f"np.trapezoid({x})",
            f"np.meshgrid({a}, {b})[0]", f"np.matmul({a}, {b})", f"np.cov({x})", f"np.quantile({x}, [0.25, 0.5])", f"len({x}) * {x}",
            f"sum({x})", f"np.take_along_axis({x}, np.argsort({x}, axis=-1, kind='stable'), -1)", f"({a} if {x}.ndim > 1 else {b})",
            f"np.ptp({x}) + {a}", f"{x}.clip(0, 3)", f"np.stack([row * 2 for row in {x}])", f"list({x})[0]", f"max({x}.shape) - {x}",
            f"np.any({a} == {b})", f"(1.0 if {x}.dtype == np.float32 else 2.0) * {x}", f"pow({x}, 2)", f"np.modf({x})[0]",
        ])  # fmt: skip

    def statement(self) -> str:
        r = self.rng
        owned = [n for n, v in self.known.items() if n.startswith("v") and isinstance(v, np.ndarray)]
        if owned and r.random() < 0.22:
            x = r.choice(owned)
            return r.choice([
                f"{x}[{self.index(x)}] = {self.operand()}", f"{x} += {self.operand()}", f"{x} *= {self.operand()}", f"{x} -= {self.operand()}",
                f"{x}[{self.index(x)}] += {self.operand()}", f"{x}[{x} > 0] = {r.choice(NUMBERS)}", f"{x}[...] = {self.operand()}",
                f"np.copyto({x}, {self.operand()})", f"{x}.fill({r.choice(NUMBERS)})", f"{x} //= 2", f"{x}.sort()",
            ])  # fmt: skip
        fresh = r.choice(["", "", ".copy()"]) if r.random() < 0.3 else ""
        return f"v{len(self.lines)} = ({self.expression()}){fresh}"

    def write(self, steps: int) -> str:
        """The source of the function `f`; every statement runs on the arguments."""
        for i in range(self.rng.randint(1, 3)):
            self.arguments["abc"[i]] = np.array(self.array(self.rng.choice(DTYPES), self.rng.choice(SHAPES)))
        self.captured["W"] = np.array(self.array(self.rng.choice(DTYPES), self.rng.choice(SHAPES)))
        self.known = {n: v.copy() for n, v in self.arguments.items()}
        scope = {"np": np, **{n: v.copy() for n, v in self.captured.items()}}
        for _ in range(steps):
            for _ in range(8):  # tries until NumPy takes one
                if self.rng.random() < 0.15:
                    self.known["W"] = scope["W"]
                line = self.statement()
                self.known.pop("W", None)
                before = {n: np.array(v) if isinstance(v, np.ndarray) else v for n, v in self.known.items()}
                space = {**scope, **self.known}
                try:
                    with np.errstate(all="ignore"), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        exec(line, space)
                except Exception:
                    self.known = before
                    continue
                found = {n: v for n, v in space.items() if n in self.known or re.fullmatch(r"v\d+", n)}
                if all(
                    isinstance(v, np.ndarray | np.generic) and v.dtype.kind in "fiub" and v.size < 400
                    for v in found.values()
                ):
                    self.known = found
                    self.lines.append(line)
                    break
                self.known = before
        names = [n for n in self.known if n.startswith("v")] or list(self.arguments)
        last = names[-1]
        others = self.rng.sample(names, min(len(names), self.rng.randint(0, 2)))
        result = self.rng.choice(
            [last, last, f"({', '.join([last, *others])},)", f"{{'y': {last}, 'z': [{', '.join(others)}]}}"]
        )
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def f({', '.join(self.arguments)}):\n{body}    return {result}\n"


def leaves(value: Any) -> list[np.ndarray]:
    """The arrays of a result, in order."""
    if isinstance(value, dict):
        return [a for v in value.values() for a in leaves(v)]
    if isinstance(value, list | tuple):
        return [a for v in value for a in leaves(v)]
    return [np.asarray(value)]


def called(source: str, captured: dict[str, np.ndarray], arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Results of the source text, executed by NumPy alone."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.array(a) for a in leaves(function_of(source, captured)(*(a.copy() for a in arrays)))]


def function_of(source: str, captured: dict[str, np.ndarray]) -> Any:
    space: dict[str, Any] = {"np": np, **{n: v.copy() for n, v in captured.items()}}
    exec(source, space)
    return space["f"]


ULP = {"float16": 1e-3, "float32": 1.2e-7, "float64": 2.3e-16}


def agreeing(found: np.ndarray, want: np.ndarray, exact: np.ndarray | None, sharp: np.ndarray | None) -> bool:
    """Whether a result is NumPy's: shape, dtype, integers and bools exactly, floats up to rounding. `exact` and `sharp`
    are NumPy's and the graph's in float64: where values in the inputs' dtypes differ by more than rounding, as where
    numbers cancel, these must not."""
    if found.shape != want.shape or found.dtype != want.dtype:
        return False
    if within(found, want, 64):
        return True
    if want.dtype.kind == "f" and not within(found, want, 1e5):
        return exact is not None and exact.shape == want.shape and rounded_alike(found, want, exact)
    if exact is None or sharp is None or exact.shape != sharp.shape:
        return False
    return bool(
        np.allclose(np.asarray(sharp, np.float64), np.asarray(exact, np.float64), rtol=1e-9, atol=1e-12, equal_nan=True)
    )


def rounded_alike(found: np.ndarray, want: np.ndarray, exact: np.ndarray) -> bool:
    """Whether a result is as near to NumPy's as that is to NumPy's in float64, roughly: what is float64 may be made of
    smaller floats."""
    with np.errstate(all="ignore"):
        a, b, c = (v.astype(np.float64) for v in (found, want, exact))
        fine = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        same = np.array_equal(np.isfinite(a), np.isfinite(b)) and np.array_equal(a[~fine], b[~fine], equal_nan=True)
        return bool(same and np.abs(a - b)[fine].max(initial=0.0) <= 16 * np.abs(b - c)[fine].max(initial=0.0))


def within(found: np.ndarray, want: np.ndarray, roundings: float) -> bool:
    """Whether results are equal up to so many roundings of the largest element; integers and bools without any."""
    if want.dtype.kind != "f":
        return bool(np.array_equal(found, want))
    tolerance = min(roundings * ULP[want.dtype.name], 0.05)
    a, b = found.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max() if finite.any() else 0.0
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def reason(error: Exception) -> str:
    """The kind of a refusal: the first line of its message with quoted names and numbers replaced."""
    text = str(error).partition("\n")[0]
    text = re.sub(r"\([^)]*\)|\[[^\]]*\]|'[^']*'|-?\d+(\.\d+)?", "·", text)
    return text[:90]


def attempt(seed: int, steps: int = 6, optimized: bool = False) -> tuple[str, str, str]:
    """(verdict "right", "refused" or "wrong", explanation, source) of one random function."""
    rng = random.Random(seed)
    writer = Writer(rng)
    source = writer.write(rng.randint(1, steps))
    arrays = list(writer.arguments.values())
    try:
        want = called(source, writer.captured, arrays)
    except Exception as error:  # statements run one by one may do what a function may not
        return "none", f"{type(error).__name__}: {error}", source
    function = function_of(source, writer.captured)
    try:
        graph = trace(function, arrays)
        if optimized:
            program = tg.optimize(function, tuple(arrays), measure=False, budget=5.0)
            found = leaves(program(*(a.copy() for a in arrays)))
        values = {str(n.attr("name")): a for n, a in zip(graph.inputs, arrays)}
        with np.errstate(all="ignore"):
            interpreted = evaluate(graph, values)
            sharp = evaluate(graph, values, float64=True)
        found = found if optimized else interpreted
    except tg.errors.TensorGraphsError as error:
        return "refused", f"{type(error).__name__}: {reason(error)}", source
    except Exception as error:
        return "wrong", f"raised {type(error).__name__}: {error}", source
    try:
        exact: list[Any] = called(
            source, writer.captured, [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        )
    except Exception:
        exact = [None] * len(want)
    if len(exact) != len(want):
        exact = [None] * len(want)
    for i, (a, b) in enumerate(zip(found, want, strict=True)):
        if not agreeing(a, b, exact[i], sharp[i] if exact[i] is not None and a.shape == interpreted[i].shape else None):
            return "wrong", f"output {i}: {a.dtype}{a.shape}\n{a!r}\nNumPy: {b.dtype}{b.shape}\n{b!r}", source
    return "right", "", source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--optimized", type=int, default=0, help="every so many go through optimize; 0: none")
    options = parser.parse_args()
    verdicts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        whole = bool(options.optimized) and seed % options.optimized == 0
        verdict, message, source = attempt(seed, options.steps, whole)
        verdicts[verdict + (", optimized" if whole else "")] += 1
        if verdict == "refused":
            reasons[message] += 1
        if verdict == "wrong":
            print(f"seed {seed}{' optimized' if whole else ''}\n{source}{message}\n", flush=True)
    print(
        f"{options.count} functions from seed {options.seed}, {time.monotonic() - began:.0f} s: {dict(sorted(verdicts.items()))}"
    )
    for text, count in reasons.most_common():
        print(f"{count:6d}  {text}")
    return 1 if any(v.startswith("wrong") for v in verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
