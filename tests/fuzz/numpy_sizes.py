"""Random NumPy functions of arrays with free sizes, with decisions (rounding, comparisons, sorting, casts) behind
arithmetic: one program must give at each size what the function gives, or raise a named error.

`python -m tests.fuzz.numpy_sizes [--seconds S] [--seed N] [--programs SHARE] [--once]`

A function grows line by line; a line that NumPy refuses at one of two sizes is dropped, so that templates need no
types. Printed: WRONG, DECIDES (differs where noise of the arguments moves the function's own result), RAW (an error
without a name), STRUCTURE (another dtype or shape).
"""

from __future__ import annotations

import random
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.models.functions.trace import trace

from .arguments import is_program, print_counts, seed_arguments
from .oracle import BASE, NOISE

Array = np.ndarray[Any, Any]
NUMBERS = (
    "0.1",
    "0.3",
    "7",
    "49",
    "3",
    "0.5",
    "1.5",
    "2",
    "255",
    "{a}.shape[0]",
    "{a}.shape[-1]",
    "({a}.shape[0] + 1)",
)
ARITHMETIC = [*(f"{{a}} {op} {n}" for n in NUMBERS for op in ("*", "/")), "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b} * {b} + 1)", "{a} - {a}.mean(0)",
              "{a} / ({a}.sum(-1, keepdims=True) + 0.5)", "{a} + np.arange({a}.shape[-1])", "{a} * (np.arange({a}.shape[0]) + 1).reshape(-1, *[1] * ({a}.ndim - 1))",
              "np.cumsum({a}, 0)", "np.cumsum({a}, -1)", "{a} @ {b}", "{a} @ {a}.T", "np.sqrt(np.abs({a}))", "np.abs({a}) ** 0.5", "{a} ** 2", "np.exp2({a} / 8)",
              "{a}.sum(0)", "{a}.sum(-1)", "{a}.mean(-1)", "{a}.mean()", "{a}.prod(0)", "{a}.var(0)", "np.einsum('...i,...i->...', {a}, {a})", "np.dot({a}, {b})",
              "np.outer({a}, {b})", "np.convolve({a}, [1, 2, 1], 'same')", "np.diff({a}, axis=0)", "np.interp({a}, [0, 1, 5], [0, 3, 4])"]  # fmt: skip
DECISIONS = ["np.floor({a})", "np.ceil({a})", "np.rint({a})", "np.trunc({a})", "{a}.astype(np.int32)", "{a}.astype(np.int64)", "{a}.astype(np.int8)", "{a}.astype(bool)",
             "{a} == {b}", "{a} != {b}", "{a} >= {b}", "{a} < {a}.mean()", "{a} > {a}.mean(0)", "{a} == {a}.max(0)", "{a} == {a}.max(-1, keepdims=True)",
             "np.argmax({a}, axis=-1)", "np.argmin({a}, axis=0)", "np.argmax({a})", "np.argsort({a}, axis=-1, kind='stable')", "np.argsort({a}, axis=0, kind='stable')",
             "{a} // 3", "{a} // 0.1", "{a} % 0.3", "{a} % 7", "np.mod({a}, {b} * {b} + 1)", "np.where({a} > 1, {a}, -{b})", "np.where({a} >= {b}, {a}, 0)", "np.sign({a})",
             "np.sort({a}, axis=-1)", "np.sort({a}, axis=0)", "({a} > 0).sum(0)", "({a} > 0.5).sum()", "np.any({a} > 2, axis=0)", "np.all({a} == {b})", "np.clip({a}, 0, 1)",
             "np.searchsorted(np.arange(5) / 2, {a})", "np.digitize({a}, [0.1, 0.7, 2])", "np.round({a}, 1)", "np.isclose({a}, {b})", "np.count_nonzero({a}, axis=0)", "np.maximum({a}, {b})",
             "np.fmod({a}, 1.5)", "np.floor_divide({a}, 7)", "np.median({a}, axis=-1)", "np.bitwise_and({a}, 3)", "np.left_shift({a}, 2)", "{a}.astype(np.uint8)"]  # fmt: skip
SHAPES = ["{a}[::-1]", "{a}[1:]", "{a}[:-1]", "{a}[: {a}.shape[0] // 2]", "{a}[{a}.shape[0] // 2 :]", "{a}[::2]", "{a}[..., ::2]", "{a}[..., ::-1]", "{a}.reshape(-1)", "{a}.T",
          "np.concatenate([{a}, {b}], 0)", "np.concatenate([{a}, {a}[:1]], 0)", "np.stack([{a}, {a}], -1)", "np.repeat({a}, 2, 0)", "np.roll({a}, 1, 0)", "np.roll({a}, -1, -1)", "{a}[:, None]",
          "{a}[None]", "{a}.max(-1)", "{a}.min(0)", "np.tril({a})", "np.triu({a}, 1)", "np.take({a}, [0, -1], 0)", "{a}[0]", "{a}[-1]", "{a}[..., -1]", "np.pad({a}, 1)", "np.pad({a}, 1, mode='edge')",
          "np.eye({a}.shape[0])", "np.arange({a}.shape[0])", "np.ones({a}.shape)", "np.zeros_like({a})", "np.full({a}.shape[:1], 3.5)", "{a}[np.arange({a}.shape[0]) // 2]", "np.linspace(0, 1, {a}.shape[0])",
          "np.broadcast_to({a}, (2, *{a}.shape))", "np.swapaxes({a}, 0, -1)", "{a}.reshape({a}.shape[0], -1)", "np.split({a}, [1], 0)[0]", "np.flip({a})", "np.diag({a})", "np.meshgrid({a}, {a})[0]",
          "np.tile({a}, 2)", "{a}.ravel()[: {a}.shape[0]]", "np.indices({a}.shape)[0]", "np.vstack([{a}, {a}])", "{a}[..., :1]", "{a} + 0 * np.arange({a}.shape[0])[::-1][..., None]"]  # fmt: skip
FORMS: tuple[tuple[Any, ...], ...] = (
    ("n",),
    ("n", 3),
    (4, "n"),
    ("n", "m"),
    ("n", "n"),
    (2, "n", "m"),
    ("n", 1),
    (3,),
    (1, "n"),
    ("m",),
    ("m", "n"),
    ("n+1",),
)
DTYPES = ("float32",) * 7 + ("float64", "float64", "float16", "int32", "int64", "uint8", "int8", "bool")
AT = (1, 2, 3, 5, 8, 13, 37, 64, 257, 0)


def array(rng: random.Random, shape: Sequence[int], dtype: str) -> Array:
    """Whole numbers with ties, multiples of numbers that decisions divide by, or random numbers."""
    draw = np.random.default_rng(rng.randrange(1 << 30))
    kind = np.dtype(dtype)
    if kind.kind in "iub":
        low, high = (0, 2) if kind.kind == "b" else (0, 9) if kind.kind == "u" else (-6, 9)
        return draw.integers(low, high, tuple(shape)).astype(dtype)
    x = draw.integers(-5, 9, tuple(shape)) * rng.choice((1, 1, 1, 7, 49, 0.5))
    return np.asarray(draw.standard_normal(tuple(shape)) * 3 if rng.random() < 0.25 else x).astype(dtype)


class Function:
    """A function that grew, its source, and the forms and dtypes of its arguments."""

    def __init__(self, seed: int, lines: int) -> None:
        self.rng = random.Random(seed)
        count = self.rng.choice((1, 1, 2))
        self.forms = [self.rng.choice(FORMS[:7]), *(self.rng.choice(FORMS) for _ in range(count - 1))]
        first = self.rng.choice(DTYPES)
        self.dtypes = [first, *(self.rng.choice((first, first, self.rng.choice(DTYPES))) for _ in range(count - 1))]
        self.lines: list[str] = []
        names = [f"x{i}" for i in range(count)]
        trials = [({"n": 5, "m": 4}), ({"n": 9, "m": 6})]
        live = [dict(zip(names, self.arguments(s))) for s in trials]
        for _ in range(6 * lines):
            if len(self.lines) >= lines:
                break
            table = self.rng.choice((ARITHMETIC, ARITHMETIC, DECISIONS, DECISIONS, SHAPES))
            recent = lambda: names[-1 - int(len(names) * self.rng.random() ** 2)]
            text = self.rng.choice(table).format(a=recent(), b=recent())
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    made = [eval(text, {"np": np}, dict(v)) for v in live]
            except Exception:
                continue
            if (
                any(
                    not isinstance(v, np.ndarray | np.generic) or v.size > 20000 or v.dtype.kind not in "fiub"
                    for v in made
                )
                or made[0].dtype != made[1].dtype
            ):
                continue
            name = f"v{len(self.lines)}"
            self.lines.append(f"    {name} = {text}")
            for v, value in zip(live, made):
                v[name] = value
            names.append(name)
        ends = [n for n in names[count:] if not any(f"{n}" in line.split(" = ", 1)[1] for line in self.lines)] or names[
            -1:
        ]
        self.source = (
            f"def f({', '.join(names[:count])}):\n" + "\n".join(self.lines) + f"\n    return {', '.join(ends[:4])},\n"
        )
        space: dict[str, Any] = {"np": np}
        exec(self.source, space)
        self.f: Callable[..., Any] = space["f"]
        self.free = sorted({d[0] for form in self.forms for d in form if isinstance(d, str)})

    def arguments(self, sizes: Mapping[str, int]) -> list[Array]:
        at = {**sizes, "n+1": sizes["n"] + 1}
        return [array(self.rng, [at.get(d, d) for d in form], dtype) for form, dtype in zip(self.forms, self.dtypes)]

    def examples(self) -> list[Any]:
        """Arguments of tg.optimize: shapes in free dimensions, and dtypes."""
        dims: dict[Any, Any] = {n: tg.dim(n, max=400) for n in self.free}
        dims["n+1"] = dims.get("n", 0) + 1
        return [(tuple(dims.get(d, d) for d in form), dtype) for form, dtype in zip(self.forms, self.dtypes)]


def distance(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        return np.where((a == b) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))


def called(f: Callable[..., Any], arguments: Sequence[Array]) -> list[Array]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(x) for x in f(*arguments)]


def compared(one: Function, arguments: Sequence[Array], found: Sequence[Any]) -> tuple[str, str]:
    """(kind, message) of a result."""
    want = called(one.f, [x.copy() for x in arguments])
    coarse = max(
        (d for d in (*(w.dtype.name for w in want), *one.dtypes) if d in NOISE),
        key=NOISE.__getitem__,
        default="float32",
    )
    moved: list[Array] | None = None
    for k, (w, f) in enumerate(zip(want, map(np.asarray, found), strict=True)):
        if w.shape != f.shape or w.dtype != f.dtype:
            return "STRUCTURE", f"result {k} is {f.dtype}{f.shape}, not {w.dtype}{w.shape}"
        gap = distance(f, w)
        finite = np.abs(w.astype(np.float64), where=np.isfinite(w.astype(np.float64)), out=np.zeros(w.shape))
        base = max(BASE[coarse], 2e-5) * max(1.0, finite.max(initial=0)) if w.dtype.kind == "f" else 0.0
        if not (gap > base).any() and not np.isnan(gap).any():
            continue
        if moved is None:
            moved = [np.zeros(x.shape) for x in want]
            for seed in range(4):
                draw = np.random.default_rng(seed)
                other = [
                    (x * (1 + NOISE[coarse] * draw.uniform(-1, 1, x.shape))).astype(x.dtype)
                    if x.dtype.kind == "f"
                    else x
                    for x in arguments
                ]
                wide = [
                    x.astype(np.float64) if x.dtype == np.float32 else x for x in other
                ]  # other roundings on the way
                for args in (other, wide):
                    for m, o, x in zip(moved, called(one.f, args), want):
                        np.maximum(m, np.nan_to_num(distance(o, x), nan=np.inf), out=m)
        bad = ~(gap <= base + 30 * moved[k])
        decides = ~bad & (gap > base)
        at = tuple(int(i) for i in np.argwhere(bad if bad.any() else decides)[0]) if (bad | decides).any() else ()
        text = f"result {k} ({w.dtype}{w.shape}): {int((bad | decides).sum())} of {w.size} differ, at {at} {f[at]!r} for {w[at]!r}"
        if bad.any():
            return "WRONG", text
        if w.dtype.kind != "f" and decides.any():
            return "DECIDES", text
    return "good", ""


Grown = Callable[[int, int], Any]  # the `Function` of a seed and a number of lines


def tried(seed: int, program: bool, grown: Grown) -> tuple[str, str]:
    """(kind, message) of a seed."""
    one = grown(seed, 1 + seed % 6)
    rng = random.Random(seed + 1)
    backend, searched = rng.choice(("numpy", "c", "c", "torch")), {n: rng.choice((4, 7, 16)) for n in one.free}
    options: dict[str, Any] = {"backend": backend, "budget": 1.5, "measure": False, "verify": rng.random() < 0.5}
    told = f"{backend if program else 'traced'} {options if program else ''} searched at {searched}\n{list(zip(one.forms, one.dtypes))}\n{one.source}"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if program:
                made = tg.optimize(one.f, one.examples(), dims=searched, **options)
                call: Callable[[Sequence[Array], Mapping[str, int]], Any] = lambda args, sizes: made(*args)
            else:
                graph = trace(one.f, one.examples())
                names = [str(x.attr("name")) for x in graph.inputs]
                call = lambda args, sizes: evaluate(
                    graph.bind({n: s for n, s in sizes.items() if n in graph.free_dims}), dict(zip(names, args))
                )
    except TensorGraphsError as error:
        return f"refused {type(error).__name__}", f"{told}{error}"
    except Exception as error:
        return "RAW", f"{told}{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
    said = "good"
    for sizes in [searched, *({n: rng.choice(AT) for n in one.free} for _ in range(4))]:
        sizes = {"n": 3, "m": 3, **sizes}
        arguments = one.arguments(sizes)
        try:
            called(one.f, [x.copy() for x in arguments])
        except Exception:
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = call([x.copy() for x in arguments], sizes)
        except TensorGraphsError as error:
            said = f"refused a size: {type(error).__name__}" + ("" if 0 in sizes.values() else " (not 0)")
            continue
        except Exception as error:
            return "RAW", f"{told}at {sizes}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
        kind, message = compared(one, arguments, found)
        if kind != "good":
            return kind, f"{told}at {sizes}: {message}"
    return said, ""


def _late(signal: int, frame: object) -> None:
    raise TimeoutError


def run(doc: str | None, grown: Grown) -> None:
    """Run a command line as described above, with functions that `grown` makes."""
    given = seed_arguments(doc, "functions", "traced").parse_args()
    signal.signal(signal.SIGALRM, _late)
    end, seed, counts = time.monotonic() + given.seconds, given.seed, Counter[str]()
    while time.monotonic() < end:
        program = is_program(seed, given.programs)
        signal.alarm(given.limit)
        try:
            kind, message = tried(seed, program, grown)
        except TimeoutError:
            kind, message = "SLOW", traceback.format_exc(limit=-6)
        signal.alarm(0)
        counts[f"{'program ' if program else ''}{kind}"] += 1
        if kind.isupper() or given.once or (given.show and given.show in kind):
            print(f"=== {kind} seed {seed} {message}", flush=True)
        seed += 1
        if given.once:
            break
    print(f"seeds {given.seed} to {seed - 1}")
    print_counts(counts)


if __name__ == "__main__":
    run(__doc__, Function)
