"""Every public function of NumPy, and every attribute and method of its arrays: traced it means what it means there, or
a named error is raised. The lists are NumPy's own."""

import copy
import math
import operator
import pickle
import warnings

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError, TraceError
from tensor_graphs.models.functions.trace import trace

RNG = np.random.default_rng(5)
ARRAYS = {
    "float32": RNG.uniform(0.1, 0.9, (3, 3)).round(2).astype(np.float32),
    "int64": RNG.integers(-3, 6, (3, 3)),
    "bool": RNG.random((3, 3)) < 0.5,
    "vector": RNG.uniform(0.1, 0.9, 4).round(2),
}
#: what is done with the function and an array: one of these fits most of NumPy's functions
PATTERNS = {
    "x": lambda f, x: f(x), "x, x": lambda f, x: f(x, x), "x, 1": lambda f, x: f(x, 1), "x, [0, 1]": lambda f, x: f(x, [0, 1]),
    "x, x, x": lambda f, x: f(x, x, x), "x, 0, 1": lambda f, x: f(x, 0, 1), "x, out": lambda f, x: f(x, out=np.zeros_like(x)),
    "[x, x]": lambda f, x: f([x, x]), "[x, x], 1": lambda f, x: f([x, x], 1), "x, axis=0": lambda f, x: f(x, axis=0),
    "x, keepdims": lambda f, x: f(x, axis=1, keepdims=True), "x, dtype": lambda f, x: f(x, dtype=np.float64),
    "x, where": lambda f, x: f(x, where=np.ones(x.shape, bool)), "x > 0, x, x": lambda f, x: f(x > 0, x, x), "1, x": lambda f, x: f(1, x),
    "x, axis=(0, 1)": lambda f, x: f(x, axis=(0, 1)), "x, 2, axis=0": lambda f, x: f(x, 2, axis=0), "equation": lambda f, x: f("i...->...", x),
    "x, int": lambda f, x: f(x, np.int64), "x, 0.5": lambda f, x: f(x, 0.5),
}  # fmt: skip
#: not functions of arrays: they print, or touch files and settings
LEFT_OUT = {
    "info", "show_config", "show_runtime", "test", "get_include", "save", "savez", "savez_compressed", "savetxt", "load", "loadtxt",
    "fromfile", "genfromtxt", "memmap", "seterr", "seterrcall", "setbufsize", "set_printoptions", "lookfor", "DataSource",
    "empty_like", "partition", "argpartition",  # of any values, in any order
}  # fmt: skip


def flat(value):
    if isinstance(value, dict):
        return [v for part in value.values() for v in flat(part)]
    if isinstance(value, list | tuple):
        return [v for part in value for v in flat(part)]
    return [] if value is None else [value]


def judged(function, x):
    """'right' or 'refused'; an AssertionError where a traced function gives something else than NumPy. 'none' where
    NumPy raises."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = function(x.copy())
        except Exception:
            return "none"
        if callable(want) or any(not isinstance(v, np.ndarray | np.generic | int | float) for v in flat(want)):
            want = None
        try:
            graph = trace(function, [x])
            found = evaluate(graph, {str(n.attr("name")): x for n in graph.inputs})
        except TensorGraphsError:
            return "refused"
    assert want is not None, "NumPy gives no array"
    wanted = [np.asarray(v) for v in flat(want)]
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.shape == b.shape and a.dtype == b.dtype, (a.dtype, a.shape, b.dtype, b.shape)
        near = {"float16": 2e-3, "float32": 1e-5}.get(b.dtype.name, 1e-9)
        np.testing.assert_allclose(a, b, rtol=near, atol=near / 10)
    return "right"


def functions():
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for name in dir(module):
            found = getattr(module, name)
            if name[0] != "_" and name not in LEFT_OUT and callable(found) and not isinstance(found, type):
                yield prefix + name, found


FUNCTIONS = dict(functions())
REFUSED = 0.3  # at most this share of the names of np, np.linalg and np.fft that NumPy takes arrays for: complex results, most of np.linalg


def test_every_function_of_numpy_is_right_or_refused_by_name():
    verdicts = {}
    for name, function in FUNCTIONS.items():
        for kind, x in ARRAYS.items():
            for pattern, call in PATTERNS.items():
                try:
                    verdict = judged(lambda x, f=function, call=call: call(f, x), x)
                except Exception as error:
                    raise AssertionError(f"np.{name}({pattern}) of {kind}: {error}") from error
                if verdict != "none":
                    verdicts.setdefault(name, set()).add(verdict)
    right = {n for n, v in verdicts.items() if "right" in v}
    assert len(verdicts) > 250 and len(right) >= (1 - REFUSED) * len(verdicts), sorted(set(verdicts) - right)


def test_every_attribute_of_an_array_is_right_or_refused_by_name():
    kept = {"__class__", "__init__", "__new__", "__init_subclass__", "__subclasshook__", "__dir__", "__doc__", "__repr__", "__str__",
            "__sizeof__", "__getattribute__", "__getstate__", "__setattr__", "__delattr__", "__class_getitem__"}  # fmt: skip
    right = 0
    for name in sorted(set(dir(np.ndarray)) - kept - LEFT_OUT):
        for kind, x in ARRAYS.items():
            calls = [lambda x, n=name: getattr(x, n)]
            calls += [
                lambda x, n=name, p=p: p(lambda a, *rest, **named: getattr(a, n)(*rest, **named), x)
                for key, p in PATTERNS.items() if key[0] == "x"
            ]  # fmt: skip
            for call in calls:
                try:
                    right += judged(call, x) == "right"
                except Exception as error:
                    raise AssertionError(f"{name} of {kind}: {error}") from error
    assert right > 300


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
@pytest.mark.parametrize("method", ["reduce", "accumulate", "outer", "at", "reduceat"])
def test_methods_of_ufuncs_are_right_or_refused_by_name(method, kind):
    def changed(x, ufunc):
        y = x.copy()
        ufunc.at(y, [0, 1, 0], 1)
        return y

    calls = {
        "reduce": [lambda x, f: f.reduce(x), lambda x, f: f.reduce(x, axis=(0, 1)), lambda x, f: f.reduce(x, 1, None, None, True),
                   lambda x, f: f.reduce(x, initial=1), lambda x, f: f.reduce(x, where=x > 0, initial=0), lambda x, f: f.reduce(x, axis=None),
                   lambda x, f: f.reduce(x, dtype=np.float64)],
        "accumulate": [lambda x, f: f.accumulate(x), lambda x, f: f.accumulate(x, 1), lambda x, f: f.accumulate(x, dtype=float)],
        "outer": [lambda x, f: f.outer(x, x), lambda x, f: f.outer(x, 2), lambda x, f: f.outer([1, 2], x)],
        "at": [changed], "reduceat": [lambda x, f: f.reduceat(x, [0, 1])],
    }  # fmt: skip
    ufuncs = [v for v in vars(np).values() if isinstance(v, np.ufunc) and v.nin == 2]
    verdicts = [judged(lambda x, f=f, call=call: call(x, f), ARRAYS[kind]) for f in ufuncs for call in calls[method]]
    assert method in ("at", "reduceat") or verdicts.count("right") > verdicts.count("refused") / 2


X, I = ARRAYS["float32"], ARRAYS["int64"]


def in_place(change):
    """A function that changes a copy."""

    def run(x):
        y = x.copy()
        return change(y) or y

    return run


def views(x):
    y = x * 2
    top, row = y[:2], y[0]
    top[0, 1] = 7
    y[0, 2] += 1
    return y, top, row


def scalars(x):
    total = same = x.sum()
    for row in x:
        total += row.max()
    return total, same


def iadd(y):
    y += 1
    y[0] *= 2
    y[:, ::-1][0] -= 3


#: functions of a 3x3 array, with what must come of them
MEANINGS = {
    "==": lambda x: np.where(x == x.T, x, -x), "!=": lambda x: (x != x.T) * x, "any of ==": lambda x: np.any(x == x.T, axis=0),
    "divmod": lambda x: divmod(x, 0.3), "rdivmod": lambda x: divmod(1, x), "pow": lambda x: (x**2, x**-1, 2**x, x**0.5),
    "matmul": lambda x: (x @ x, [1, 2, 3] @ x), "iteration": lambda x: [row * i for i, row in enumerate(x)], "sum()": lambda x: sum(x),
    "reversed": lambda x: list(reversed(x)), "len": lambda x: len(x) * x, "copy": lambda x: (copy.copy(x), copy.deepcopy(x)),
    "in place": in_place(iadd), "item assignment": in_place(lambda y: y.__setitem__((slice(None), 0), [1, 2, 3])),
    "mask assignment": in_place(lambda y: y.__setitem__(y > 0.5, 0)), "views": views, "scalars": scalars,
    "out=": lambda x: np.add(x, 1, out=np.empty_like(x)), "where=": lambda x: np.add(x, 1, out=np.ones_like(x), where=x > 0.5),
    "index arrays": lambda x: (x[[0, 1], [1, 2]], x[[0, -1]], x[:, [True, False, True]], x[np.ix_([0, 2], [1])], x[0, :, [1, 2, 0]]),
    "basic indices": lambda x: (x[::-1, ::-2], x[None, ..., 0], x[-1, -1], x[5:], x[...], x[()]),
    "isinstance": lambda x: x * 2 if isinstance(x, np.ndarray) else x, "dtype": lambda x: x * (2 if x.dtype == np.float32 else 3),
    "hasattr": lambda x: x * (2 if hasattr(x, "numpy") else 3), "shapes": lambda x: x * 2 if x.shape[0] == 3 and x.ndim == 2 else x,
    "same twice": lambda x: (x, x), "nested": lambda x: {"a": [x, (x + 1, None)], "b": 2.5}, "constants": lambda x: (np.arange(3), x),
    "float64 scalars": lambda x: x / np.sqrt(9), "weak numbers": lambda x: x * 2.5 + 1, "captured": lambda x: x @ I + I,
    "sort in place": in_place(lambda y: y.sort(0)), "fill": in_place(lambda y: y.fill(3)), "swap": lambda x: x[[1, 0, 2]],
}  # fmt: skip
#: functions that have no meaning while they are traced
REFUSALS = {
    "bool": lambda x: x if x[0, 0] else -x, "and": lambda x: x and 1, "not": lambda x: not x, "if ==": lambda x: 1.0 if x[0, 0] == x[0, 1] else x,
    "if array_equal": lambda x: x if np.array_equal(x, x.T) else -x, "int": lambda x: x * int(x[0, 0]), "float": lambda x: float(x.sum()) * x,
    "index": lambda x: [1, 2][x.astype(int)[0, 0]], "complex": lambda x: complex(x[0, 0]), "in": lambda x: x if 0.5 in x else -x,
    "hash": lambda x: {x[0, 0]: 1}, "round": lambda x: round(x[0, 0]), "floor": lambda x: math.floor(x[0, 0]), "max": lambda x: max(x[0]),
    "sorted": lambda x: sorted(x[0]), "format": lambda x: f"{x[0, 0]:.2f}", "tolist": lambda x: x.tolist(), "item": lambda x: x.item(0),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)), "asarray": lambda x: np.asarray(x), "array": lambda x: np.array([x[0], x[1]]),
    "fill of a scalar": lambda x: x.sum().copy().fill(7), "range": lambda x: x[: x.argmax()], "operator.index": lambda x: operator.index(x.argmax()), "del": lambda x: x.__delitem__(0),
    "argument": lambda x: x.__iadd__(1), "argument's view": lambda x: x[0].fill(1), "argument by out=": lambda x: np.exp(x, out=x),
    "captured array": lambda x: np.add(X.copy(), 1, out=X.copy()) + np.add(x, 1, out=X.copy()), "write": lambda x: X.copy().__setitem__(0, x[0]),
    "mask": lambda x: x[x > 0.5], "nonzero": lambda x: np.nonzero(x), "unique": lambda x: np.unique(x), "setattr": lambda x: setattr(x, "shape", (9,)),
    "a shared view": lambda x: (lambda y, v: y.__iadd__(1) + v.sum())(*(lambda y: (y, y.T))(x * 2)), "dlpack": lambda x: np.from_dlpack(x),
    "vectorize": lambda x: np.vectorize(lambda v: v + 1)(x), "set": lambda x: {*x}, "dict keys": lambda x: {1: x}, "text": lambda x: "x",
    "no attribute": lambda x: x.numpy(), "frompyfunc": lambda x: np.frompyfunc(lambda v: v, 1, 1)(x), "math": lambda x: math.sqrt(x[0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_what_python_does_with_an_array(name, kind):
    assert judged(MEANINGS[name], ARRAYS[kind]) in ("right", "none")


@pytest.mark.parametrize("name", REFUSALS)
def test_what_has_no_meaning_is_refused(name):
    with pytest.raises(TraceError), np.errstate(all="ignore"):
        trace(REFUSALS[name], [X])
