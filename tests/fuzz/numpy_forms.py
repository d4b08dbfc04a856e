"""Random NumPy functions made of forms: methods of ufuncs with where=, out=, initial=, dtype= and casting=, indices of
every kind that are read, written and updated in place, views, selection, promotion and statements of Python.

`python -m tests.fuzz.numpy_forms [--seconds S] [--seed N] [--programs SHARE] [--once]`

A function grows statement by statement; one that NumPy refuses is dropped. A form is put together from random options,
so that few tables make many. Printed as by `numpy_sizes`, whose comparison is used. Ties of sorts that are not stable
and the sign of a NaN differ, and are no findings.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .numpy_sizes import Array, array, run

UNARY = ("negative", "absolute", "sign", "floor", "rint", "square", "sqrt", "exp", "log1p", "isnan", "invert", "logical_not", "reciprocal",
         "positive", "conjugate", "frexp", "modf", "cbrt", "deg2rad", "trunc", "isfinite", "bitwise_count", "expm1", "tanh", "arctan")  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "maximum", "minimum", "fmax", "fmin", "greater", "less_equal", "equal",
          "not_equal", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "copysign", "hypot", "arctan2",
          "heaviside", "float_power", "divmod", "ldexp", "logaddexp", "matmul")  # fmt: skip
FOLDS = ("sum", "prod", "mean", "std", "var", "max", "min", "any", "all", "nansum", "nanprod", "nanmean", "nanmax", "nanmin", "nanstd", "ptp", "argmax", "argmin", "nanargmax", "median",
         "nanmedian", "cumsum", "cumprod", "nancumsum", "count_nonzero", "average", "cumulative_sum", "linalg.norm", "trace", "sort", "argsort", "flip", "unstack", "cumulative_prod")  # fmt: skip
KINDS = ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool", "np.float32", "float", "int", "'f4'", "'i2'", "complex64")  # fmt: skip
NUMBERS = ("2", "-1", "0.5", "3", "True", "np.float32(0.1)", "np.int8(3)", "np.float64(0.3)", "np.uint8(200)", "127", "1e30", "np.bool_(True)", "np.array(2)", "np.array([1.5])", "7", "-0.0", "np.inf", "1j",
           "np.int64(5)", "np.float16(0.1)")  # fmt: skip
SELECTIONS = (
    "np.take({a}, [0, -1], {x}, mode={mode})", "np.take({a}, {i})", "np.take({a}, {i}, axis={x}, mode={mode})", "np.take_along_axis({a}, np.argsort({a}, {x}), {x})",
    "np.select([{m}, {m}], [{a}, {b}], {n})", "np.select([{m}], [{a}])",
    "np.piecewise({a}, [{a} < 0, {a} > 2], [lambda v: v * 2, {n}, lambda v: -v])", "np.piecewise({a}, [{a} < 0], [{n}, lambda v: v + 1])", "np.where({m}, {a}, {n})", "np.where({a}, {b}, {a})",
    "np.compress([True, False, True], {a}, axis={x})", "np.clip({a}, {n}, {n})", "np.clip({a}, {b}, None)", "{a}.clip({n}, max={b})",
    "np.searchsorted(np.sort({a}.ravel()), {b}, side={side})", "np.digitize({a}, [0, 1, 3], right={f})", 
    "np.roll({a}, (1, -2), (0, -1))", "np.rot90({a}, {k})", "np.repeat({a}, [1, 0, 2], {x})", "np.repeat({a}, 2)", "np.insert({a}, 1, {n}, axis={x})", "np.insert({a}, [0, 2], {b}, axis={x})",
    "np.delete({a}, [0, -1], {x})", "np.delete({a}, slice(None, None, 2), {x})", "np.append({a}, {b})", "np.append({a}, {b}, {x})", "np.pad({a}, 1, mode={pad})", "np.pad({a}, ((1, 0), (0, 2)), mode={pad})",
    "np.diff({a}, n=2, axis={x})", "np.diff({a}, axis={x}, prepend={n})", "np.diff({a}, append={a}, axis={x})", "np.ediff1d({a}, to_end={n})", "np.trapezoid({a}, axis={x})",
    "np.convolve({a}.ravel(), [1, 2, 0.5], {cm})", "np.correlate({a}.ravel(), {b}.ravel(), {cm})", "np.cross({a}, {b})", "np.kron({a}, {b})",
    "np.tensordot({a}, {b}, {k})", "np.tensordot({a}, {a}, ([0], [0]))", "np.inner({a}, {b})", "np.outer({a}, {b})", "np.vdot({a}, {a})", "np.einsum('ij,kj->ik', {a}, {b})", "np.einsum('ij->ji', {a})",
    "np.einsum('ii->i', {a}[:2, :2])", "np.einsum('ii', {a}[:2, :2])", "np.einsum('...i->i...', {a})", "np.einsum('i...,i...->...', {a}, {a})", "np.einsum('ij,jk,lk->il', {a}, {a}.T, {a})", 
    "np.einsum('ba', {a})", "np.einsum('ij,ij,ij->i', {a}, {a}, {a})", "np.einsum('ij->', {a}, dtype={d})", "np.diagonal({a}, {k}, 0, 1)", "np.trace({a}, {k})",
    "np.diag({a}, {k})", "np.tril({a}, {k})", "np.isin({a}, [1, 2, 3], invert={f})", "np.nan_to_num({a}, nan={n}, posinf=1)", "np.vander({a}.ravel()[:3], {k})",
    "np.apply_along_axis(lambda v: v.sum(), {x}, {a})", "np.round({a}, {k})", "np.round({a}, -1)", "np.quantile({a}, 0.3, axis={x})", "np.percentile({a}, [25, 50], axis={x}, keepdims={f})",
    "np.broadcast_to({a}, (2, *{a}.shape))", "np.concatenate([{a}, {b}], axis={x}, dtype={d}, casting={cast})", "np.stack([{a}, {b}], {x})", "np.block([[{a}, {b}]])", "np.vstack([{a}, {b}])", "np.hstack(({a}, {b}))", "np.column_stack([{a}, {b}])",
    "np.array_split({a}, 2, {x})[{k}]", "np.moveaxis({a}, 0, -1)", "np.swapaxes({a}, 0, {x})", "np.expand_dims({a}, (0, -1))", "np.squeeze({a}[None])", "np.atleast_3d({a})", "{a}.reshape(-1, order={o})", "np.reshape({a}, (-1, 1), order={o})", "{a}.ravel({o})",
    "{a}.flatten({o})", "{a}.astype({d}, casting={cast})", "{a}.astype({d})", "np.asarray({a}, dtype={d})", "np.array({a}, dtype={d}, copy=True, ndmin=3)", "np.full_like({a}, {n})", "np.ones_like({a}, dtype={d})", "np.zeros({a}.shape, {d}) + {b}", "{a}.swapaxes(0, -1)",
    "np.copysign({a}, {n})", "np.array_equal({a}, {b})", "np.allclose({a}, {b})", "np.isclose({a}, {n}, atol=1)", "np.cov({a})", "np.meshgrid({a}, {b}, indexing='ij')[0]", "np.ix_([0, 1], [1])[0] + {a}", "np.linalg.matrix_power({a}[:2, :2], {k})",
    "{a}.real", "{a}.imag", "np.iscomplexobj({a}) + {a}", "{a}.item(0) + {b}", "{a}[{a} > 0]", "np.fix({a})", "np.sinc({a})",
    "np.geomspace(1, 8, 3) + {a}", "np.dot({a}, {b})", "np.matvec({a}, {a}[0])", "np.vecdot({a}, {a})", "np.float32({a}.sum())", "{a}.sum() * {n}", "{a}.max() + np.float32(1)", "np.int64({k}) * {a}.sum()", "{a}.shape[0] * {b}", "{a}.size / 2 + {b}", "len({a}) * {b}",
    "np.ma.masked_array({a}, {m})", "np.matrix({a})", "np.datetime64('2020-01-01') + {a}", "np.timedelta64(1, 'D') * {a}", "{a}.astype(object)", "{a}.astype(str)", "{a} + np.array(['a'])", "{a}.astype(complex).real", "np.abs({a} + 1j)", "({a} * 1j).imag", "np.real_if_close({a})",
)  # fmt: skip
STATEMENTS = (
    "{w} += {b}", "{w} -= {n}", "{w} *= {a}", "{w} /= 2", "{w} //= {n}", "{w} %= 3", "{w} **= 2", "{w} &= 3", "{w} |= {b}", "{w} <<= 1", "{w} ^= {n}", "{w}[...] = {b}", "{w}[:] = {n}", "{w}[{idx}] = {n}", "{w}[{idx}] = {b}", "{w}[{idx}] += {n}",
    "{w}[{idx}] *= {b}", "{w}[{idx}] -= {a}[{idx}]", "{w}[{m}] = {n}", "{w}[{a} > 1] = {n}", "{w}[{a} > 1] += 1", "{w}[{a} > 1] = {a}[{a} > 1]", "np.put({w}, [0, -1], {n})", "np.put_along_axis({w}, np.argmax({w}, {x}, keepdims=True), {n}, {x})", "np.place({w}, {m}, [1, 2])",
    "np.putmask({w}, {m}, {b})", "np.copyto({w}, {b}, casting={cast})", "np.copyto({w}, {b}, where={m})", "np.fill_diagonal({w}, {n})", "{w}.fill({n})", "{w}.sort({x})", "np.add.at({w}, [0, 0, 1], {n})", "np.add({w}, {b}, out={w})", "np.add({a}, {b}, out={w}, where={m})", "np.add({w}[1:], {w}[:-1], out={w}[1:])",
    "np.multiply({w}, {b}, {w}, casting={cast})", "np.cumsum({w}, axis={x}, out={w})", "np.maximum({w}, 0, out={w})", "np.negative({w}, out={w}, where={m})", "np.clip({w}, 0, 2, out={w})", "{w}.T[0] = {n}", "{w}.reshape(-1)[::2] = {n}", "{w}.ravel()[0] = {n}", "{w}[0], {w}[1] = {w}[1].copy(), {w}[0].copy()",
    "{w}[::-1] += {b}", "{w}[::-1] = {w}", "{w}[1:] = {w}[:-1]", "{w}[1:] += {w}[:-1]", "{w}[:, ::2] *= {n}", "np.sum({a}, 0, out={w}[0])", "np.round({w}, 1, out={w})", 
    "for r in {w}: r += {n}", "for k in range(len({w})): {w}[k] = {w}[k - 1] + {n}", "for k, r in enumerate({a}): {w}[k] -= r", "np.subtract.at({w}, (0, [1, 1]), {b})", "np.divide({w}, {b}, out={w}, where={b} != 0)", "np.nan_to_num({w}, copy=False)", "np.take({a}, [1, 0], {x}, out={w})", "np.einsum('ij,ij->ij', {a}, {b}, out={w})",
)  # fmt: skip
VIEWS = (
    "{w}.T", "{w}[1:]", "{w}[::-1]", "{w}[..., 0]", "{w}[0]", "{w}[:, None]", "{w}.reshape(-1)", "{w}.ravel()", "{w}.copy()", "np.broadcast_to({w}, {w}.shape)", "{w}[...]", "{w}.view()", "np.asarray({w})", "np.ascontiguousarray({w})", "{w}.swapaxes(0, -1)", "np.diagonal({w})", "{w}.squeeze()", "{w}[::2, 1:]",
    "np.atleast_2d({w})", "{w}.diagonal()", "np.split({w}, [1])[1]", "np.flip({w}, 0)", "{w}.astype({w}.dtype, copy=False)", "np.lib.stride_tricks.sliding_window_view({w}, 2, axis=-1)", "{w}.real", "[*{w}][0]", "{w}[()]", "{w}[0, ...]",
)  # fmt: skip
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "@", "<", "==", ">=")
DTYPES = ("float32",) * 5 + ("float64", "float16", "int32", "int64", "uint8", "int8", "bool", "uint16", "uint64")
SHAPES = ((3, 4), (3, 4), (3, 3), (4,), (2, 3, 4), (), (1,), (3, 1), (0, 3), (5,), (2, 2))


class Forms:
    """A function that grew: its source, and the shapes and dtypes of its arguments."""

    def __init__(self, seed: int, lines: int) -> None:
        self.rng = random.Random(seed)
        count = self.rng.choice((1, 2, 2))
        self.forms = [self.rng.choice(SHAPES[:5])]
        self.forms += [
            self.rng.choice((self.forms[0], self.forms[0], self.rng.choice(SHAPES))) for _ in range(count - 1)
        ]
        first = self.rng.choice(DTYPES)
        self.dtypes = [first, *(self.rng.choice((first, self.rng.choice(DTYPES))) for _ in range(count - 1))]
        self.free: list[str] = []
        self.names = [f"x{i}" for i in range(count)]
        self.own: list[str] = []  # arrays that are no arguments
        self.lines: list[str] = []
        self.first = self.arguments({})
        for _ in range(8 * lines):
            if len(self.lines) < lines:
                self.step()
        ends = self.names[count:][-5:] or self.names
        self.source = (
            f"def f({', '.join(self.names[:count])}):\n" + "\n".join(self.lines) + f"\n    return {', '.join(ends)},\n"
        )
        space: dict[str, Any] = {"np": np}
        exec(self.source, space)
        self.f: Callable[..., Any] = space["f"]

    def step(self) -> None:
        """Append a statement, unless NumPy refuses it. All lines run anew: one that fails may have changed values."""
        text, target = self.statement(), f"v{len(self.lines)}"
        line = text.removeprefix("!") if text.startswith("!") else f"{target} = {text}"
        space: dict[str, Any] = {"np": np, **dict(zip(self.names, [x.copy() for x in self.first]))}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                exec("\n".join([*(v.strip() for v in self.lines), line]), space)
        except Exception:
            return
        if text.startswith("!"):
            self.lines.append(f"    {line}")
            return
        made = space[target]
        if isinstance(made, tuple | list) and len(made) == 2 and all(isinstance(v, np.ndarray) for v in made):
            which = self.rng.randrange(2)
            line, made = f"{line}[{which}]", made[which]
        if isinstance(made, np.ndarray | np.generic) and made.dtype.kind in "fiub" and made.size < 3000:
            self.lines.append(f"    {line}")
            self.names.append(target)
            if isinstance(made, np.ndarray):
                self.own.append(target)

    # ------------------------------------------------------------ texts
    def statement(self) -> str:
        how = self.rng.random()
        if how < 0.3:
            return self.filled(self.rng.choice(SELECTIONS))
        if how < 0.42:
            return self.filled(f"{{a}}[{self.index()}]")
        if how < 0.52:
            return self.filled(self.rng.choice(VIEWS))
        if how < 0.68 and self.own:
            return "!" + self.filled(self.rng.choice(STATEMENTS))
        if how < 0.74:
            return (
                self.filled("{a}.copy()")
                if self.rng.random() < 0.6
                else self.filled(f"{{a}} {self.rng.choice(OPERATORS)} {self.rng.choice(('{b}', '{n}'))}")
            )
        if how < 0.84:
            return self.filled(self.fold())
        return self.filled(self.ufunc())

    def filled(self, text: str) -> str:
        """The template with random operands and options."""
        r, recent = self.rng, lambda names: names[-1 - int(len(names) * self.rng.random() ** 1.6)]
        options: dict[str, Callable[[], str]] = {
            "a": lambda: recent(self.names), "b": lambda: recent(self.names), "w": lambda: recent([v for v in self.own if v[0] == "v"] or self.names), "n": lambda: r.choice(NUMBERS), "x": lambda: r.choice(("0", "-1", "1", "0", "None")),
            "i": lambda: f"({recent(self.names)} > 1).astype({r.choice(('int', 'np.int8', 'np.uint8'))})", "m": lambda: r.choice((f"{recent(self.names)} > {r.choice((0, 1))}", f"np.arange({recent(self.names)}.size).reshape({recent(self.names)}.shape) % 2 == 0", f"({recent(self.names)} != 0)")),
            "d": lambda: (lambda d: d if d.startswith(("np.", "'", "float ", "bool")) or d in ("float", "int") else f"np.{d}")(r.choice(KINDS)), "mode": lambda: r.choice(("'raise'", "'clip'", "'wrap'")), "side": lambda: r.choice(("'left'", "'right'")), "f": lambda: r.choice(("True", "False")),
            "k": lambda: r.choice(("0", "1", "2", "-1")), "pad": lambda: r.choice(("'constant'", "'edge'", "'reflect'", "'symmetric'", "'wrap'", "'mean'", "'maximum'", "'linear_ramp'")), "cm": lambda: r.choice(("'full'", "'same'", "'valid'")),
            "cast": lambda: r.choice(("'same_kind'", "'unsafe'", "'safe'", "'no'", "'equiv'")), "o": lambda: r.choice(("'C'", "'F'", "'A'", "'K'")), "idx": self.index,
        }  # fmt: skip
        for key, make in options.items():
            while f"{{{key}}}" in text:
                text = text.replace(f"{{{key}}}", make(), 1)
        return text

    def index(self) -> str:
        """An index of one to three components."""
        r = self.rng
        one: Sequence[Callable[[], str]] = (
            lambda: r.choice(("0", "-1", "1", "np.int64(1)")), lambda: r.choice((":", "1:", "::2", "::-1", "::-2", "-2:", ":-1", "2:0:-1", "5:", ":0", "-1:0:-1")), lambda: "...", lambda: "None",
            lambda: r.choice(("[0, 1]", "[1, -1]", "[[0], [1]]", "[0, 0]", "np.array([2, 0])", "np.array([[0, 1]])", "[]", "np.arange(2)", "np.int8(1)")), lambda: r.choice(("[True, False, True]", "np.array([True, True, False])", "[False, True]", "True", "np.ones(4, bool)", "[True] * 3")),
            lambda: self.filled("{i}"), lambda: self.filled("({a}.ravel()[:2] > 0).astype(int)"), lambda: self.filled("np.argsort({a}, 0)"), lambda: self.filled("{a}.argmax()"), lambda: self.filled("{a}.shape[0] // 2"),
        )  # fmt: skip
        weights = (3, 5, 1, 1, 3, 1.5, 1, 1, 0.7, 0.7, 0.7)
        return ", ".join(make() for make in r.choices(one, weights, k=r.choice((1, 1, 2, 2, 3))))

    def some(self, options: Sequence[tuple[str, float]]) -> str:
        """Options, each with its probability, as text."""
        return "".join(f", {o}" for o, p in options if self.rng.random() < p)

    def fold(self) -> str:
        name = self.rng.choice(FOLDS)
        call = (
            f"np.{name}({{a}}" if self.rng.random() < 0.6 or "." in name or name.startswith("nan") else f"{{a}}.{name}("
        )
        more = self.some((("axis={x}", 0.6), ("axis=(0, 1)", 0.05), ("keepdims=True", 0.2), ("dtype={d}", 0.15), ("initial={n}", 0.12), ("where={m}", 0.15), ("ddof=1", 0.08), ("out={w}", 0.06), ("kind='stable'", 0.1), ("weights={b}", 0.05), ("ord=1", 0.05)))  # fmt: skip
        return f"{call}{more})".replace("(, ", "(")

    def ufunc(self) -> str:
        options = self.some((("where={m}, out={a}.copy()", 0.1), ("out={w}", 0.06), ("dtype={d}", 0.12), ("casting={cast}", 0.08), ("order={o}", 0.03), ("subok=False", 0.02)))  # fmt: skip
        if self.rng.random() < 0.3:
            return f"np.{self.rng.choice(UNARY)}({{a}}{options})"
        u, other, how = self.rng.choice(BINARY), self.rng.choice(("{b}", "{b}", "{n}")), self.rng.random()
        if how < 0.45:
            return f"np.{u}({{a}}, {other}{options})"
        if how < 0.72:
            more = self.some((("axis={x}", 0.6), ("dtype={d}", 0.15), ("keepdims=True", 0.2), ("initial={n}", 0.2), ("where={m}", 0.2), ("out={w}", 0.06)))  # fmt: skip
            return f"np.{u}.reduce({{a}}{more})"
        if how < 0.85:
            return f"np.{u}.accumulate({{a}}{self.some((('axis={x}', 0.6), ('dtype={d}', 0.2), ('out={w}', 0.05)))})"
        if how < 0.95:
            return f"np.{u}.outer({{a}}, {other}{self.some((('dtype={d}', 0.2),))})"
        return f"np.{u}.reduceat({{a}}, [0, 2, 1], axis={{x}})"

    # ------------------------------------------------------------ arguments
    def arguments(self, sizes: Mapping[str, int]) -> list[Array]:
        """New arguments; a function grew on the first ones."""
        return [array(self.rng, form, dtype) for form, dtype in zip(self.forms, self.dtypes)]

    def examples(self) -> list[Any]:
        """Arguments of tg.optimize: shapes and dtypes."""
        return list(zip(self.forms, self.dtypes))


if __name__ == "__main__":
    run(__doc__, Forms)
