"""NumPy's functions on our tensors mean what they mean on arrays."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import ShapeError, TraceError, UsageError
from tensor_graphs.models.functions.numpy_calls import REDUCTIONS, UFUNCS
from tensor_graphs.models.functions.trace import trace

from .traced_results import results

RNG = np.random.default_rng(3)
X = (RNG.integers(1, 9, (3, 4)) / 10).astype(np.float32)  # inside every ufunc's domain but arccosh's
Y = (RNG.integers(1, 9, (3, 4)) / 10).astype(np.float32)
CUBE = RNG.standard_normal((2, 3, 4)).astype(np.float32)
B = X > 0.4

#: name -> calls that the function must give NumPy's answer to
CASES = {
    "sum": [lambda x: np.sum(x), lambda x: np.sum(x, axis=-1, keepdims=True), lambda x: np.sum(x > 0.3, 0)],
    "prod": [lambda x: np.prod(x, 0)], "mean": [lambda x: np.mean(x, axis=(0, 1))], "max": [lambda x: np.max(x, 1)],
    "min": [np.min], "amax": [lambda x: np.amax(x, 1)], "amin": [np.amin], "all": [lambda x: np.all(x > 0.2, 0)],
    "any": [lambda x: np.any(x > 0.6, 1)], "var": [lambda x: np.var(x, 0, ddof=1)], "std": [lambda x: np.std(x, axis=1)],
    "average": [lambda x: np.average(x, 0), lambda x: np.average(x, 0, weights=Y)],
    "linalg.norm": [np.linalg.norm, lambda x: np.linalg.norm(x, axis=1)], "cumsum": [np.cumsum, lambda x: np.cumsum(x, 1)],
    "cumprod": [np.cumprod, lambda x: np.cumprod(x, 1)], "diff": [np.diff, lambda x: np.diff(x, 2, 0), lambda x: np.diff(x > 0.4)],
    "nansum": [lambda x: np.nansum(np.log(x - 0.5), 1)], "count_nonzero": [lambda x: np.count_nonzero(x > 0.3, axis=1)],
    "ptp": [np.ptp, lambda x: np.ptp(x, axis=0)],
    "argmax": [np.argmax, lambda x: np.argmax(x, 1)], "argmin": [lambda x: np.argmin(x, axis=0, keepdims=True)],
    "sort": [lambda x: np.sort(x, 0)], "argsort": [lambda x: np.argsort(x, axis=1, kind="stable")],
    "dot": [lambda x: np.dot(x, Y.T), lambda x: np.dot(x, np.ones((2, 4, 5), np.float32)), lambda x: np.dot(2.0, x)],
    "inner": [lambda x: np.inner(x, Y)], "vdot": [lambda x: np.vdot(x, Y)], "outer": [lambda x: np.outer(x, Y[0])],
    "tensordot": [lambda x: np.tensordot(x, Y, ([0], [0])), lambda x: np.tensordot(x, Y)],
    "einsum": [lambda x: np.einsum("ij,kj->ki", x, Y), lambda x: np.einsum("ij->", x), lambda x: np.einsum("ii->i", x[:, :3])],
    "reshape": [lambda x: np.reshape(x, (2, -1)), lambda x: np.reshape(x, -1)], "ravel": [np.ravel], "copy": [np.copy],
    "transpose": [np.transpose, lambda x: np.transpose(x[None], (2, 0, 1))], "matrix_transpose": [np.matrix_transpose],
    "swapaxes": [lambda x: np.swapaxes(x, 0, 1)], "moveaxis": [lambda x: np.moveaxis(x[None, :, None], (0, 1), (-1, 0))],
    "expand_dims": [lambda x: np.expand_dims(x, (0, -1))], "squeeze": [lambda x: np.squeeze(x[None]), lambda x: np.squeeze(x[None], 0)],
    "broadcast_to": [lambda x: np.broadcast_to(x, (2, 3, 4))], "stack": [lambda x: np.stack([x, Y], axis=1)],
    "concatenate": [lambda x: np.concatenate([x, Y], 1), lambda x: np.concatenate([x, Y[0]], axis=None)],
    "hstack": [lambda x: np.hstack([x, Y]), lambda x: np.hstack([x[0], Y[0]])], "vstack": [lambda x: np.vstack([x, Y[0]])],
    "split": [lambda x: np.split(x, 2, axis=1), lambda x: np.split(x, [1, 3], 1)], "array_split": [lambda x: np.array_split(x, 3, 1)],
    "flip": [np.flip, lambda x: np.flip(x, 1)], "fliplr": [np.fliplr], "flipud": [np.flipud],
    "roll": [lambda x: np.roll(x, 2), lambda x: np.roll(x, -1, axis=1)],
    "pad": [lambda x: np.pad(x, 1), lambda x: np.pad(x, ((0, 2), (1, 0)), constant_values=3), lambda x: np.pad(x, 2, mode="edge")],
    "repeat": [lambda x: np.repeat(x, 2), lambda x: np.repeat(x, 3, axis=0)],
    "tile": [lambda x: np.tile(x, 2), lambda x: np.tile(x, (2, 1, 3))], "tril": [np.tril], "triu": [lambda x: np.triu(x, 1)],
    "diagonal": [np.diagonal, lambda x: np.diagonal(x, 1)], "diag": [np.diag, lambda x: np.diag(x[0])], "trace": [np.trace],
    "take": [lambda x: np.take(x, [0, -1], axis=1), lambda x: np.take(x, [5])],
    "take_along_axis": [lambda x: np.take_along_axis(x, np.array([[1], [0], [2]]), 1)],
    "where": [lambda x: np.where(x > 0.4, x, 0.0), lambda x: np.where(B, x, Y)],
    "clip": [lambda x: np.clip(x, 0.2, 0.5), lambda x: np.clip(x, None, 0.5), lambda x: np.clip(x, min=0.4)],
    "zeros_like": [np.zeros_like], "ones_like": [lambda x: np.ones_like(x, dtype=np.int32)],
    "full_like": [lambda x: np.full_like(x, 7)], "nan_to_num": [lambda x: np.nan_to_num(x / (x > 0.4))],
    "sinc": [lambda x: np.sinc(x - x[:, :1])], "shape": [lambda x: x * np.shape(x)[1]], "ndim": [lambda x: x * np.ndim(x)],
    "size": [lambda x: x * np.size(x), lambda x: x * np.size(x, 0)], "round": [lambda x: np.round(x, 1), lambda x: np.round(x * 7)],
}  # fmt: skip


def agrees(function, *arrays):
    """Traced and evaluated it gives what NumPy gives, in shape, kind and value."""
    for a, b in results(function, *arrays):
        np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(CASES))
def test_functions_agree_with_numpys(name):
    for function in CASES[name]:
        agrees(function, X)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_sliding_windows_agree_with_numpys(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    axes = data.draw(
        st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=3, unique_by=lambda a: a % len(shape))
    )
    sizes = [data.draw(st.integers(1, shape[a])) for a in axes]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    view = np.lib.stride_tricks.sliding_window_view
    agrees(lambda x: view(x, tuple(sizes), axis=tuple(axes)), x)
    agrees(lambda x: [view(x, sizes[0], axis=axes[0]), view(x, tuple(shape))], x)


def test_sliding_windows_share_memory():
    view = np.lib.stride_tricks.sliding_window_view
    agrees(lambda x: view(x, (2, 2), axis=(1, 1)), X)
    for call in (
        lambda x: view(x, 5, axis=1),
        lambda x: view(x, 0, axis=1),
        lambda x: view(x, (1,)),
        lambda x: view(x, 2, axis=7),
    ):
        with pytest.raises(TraceError, match=r"sliding_window_view|windows without"):
            trace(call, [X])

    def changed(x):
        x = x.copy()
        windows = view(x, 2, axis=1)
        x[0] = 1
        return windows

    with pytest.raises(TraceError, match="share its memory"):
        trace(changed, [X])


@pytest.mark.parametrize("name", sorted(UFUNCS))
def test_ufuncs_agree_with_numpys(name):
    ufunc = getattr(np, name)
    arrays = (
        [B, ~B.T.reshape(3, 4)] if name.startswith(("bitwise", "invert")) else
        [(X * 10).astype(np.int32), (Y * 10).astype(np.int32)] if name.endswith("shift") else
        [1 + X if name == "arccosh" else X, Y]
    )  # fmt: skip
    if name in ("matmul", "vecmat"):
        arrays = [X, Y.T] if name == "matmul" else [X[:, 0], Y]
    agrees(lambda *xs: ufunc(*xs), *arrays[: ufunc.nin])
    if ufunc.nin == 2:  # an array on either side
        agrees(lambda x: ufunc(x, arrays[1]), arrays[0])
        agrees(lambda x: ufunc(arrays[0], x), arrays[1])


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_ufuncs_reduce(name):
    agrees(lambda x: getattr(np, name).reduce(x > 0.4 if name.startswith("logical") else x, axis=1), CUBE)
    agrees(lambda x: getattr(np, name).reduce(x > 0.4 if name.startswith("logical") else x), CUBE)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool"])
def test_sums_of_integers_are_kept_in_64_bits(dtype):
    x = np.full((3, 4), 1 if dtype == "bool" else 101, dtype)
    calls = [np.sum, np.prod, np.cumsum, np.cumprod, np.trace, np.add.reduce, lambda x: x.sum(0), lambda x: x.prod(0),
             lambda x: x.cumsum(1), lambda x: np.sum(x, dtype=np.int16), lambda x: np.mean(x, dtype=np.float64),
             lambda x: np.vdot(x, x), lambda x: np.einsum("ij->i", x)]  # fmt: skip
    for call in calls:
        (found,), wanted = evaluate(trace(call, [x]), {"x": x, "a": x, "m": x, "array": x}), call(x)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted), (call, found, wanted)


def test_shifts():
    x = np.array([1, 255, 128], np.uint8)
    shifted = lambda x: [~x, x >> 1, x << 3, np.uint8(2) << x // 60, np.right_shift(x, 8)]
    agrees(lambda x: [*shifted(x), np.fmax(x, x[::-1]), np.fmax(x, np.arange(3))], x)


def test_operators_take_arrays_on_either_side():
    agrees(lambda x: (Y * x + 2**x - x @ Y.T.copy() @ Y) / Y, X)
    agrees(lambda x: [Y - x, 7 % x, 7 // x, (x > 0.4) ^ B, B & (x > 0.2), [1.0, 2.0, 3.0, 4.0] + x], X)
    agrees(lambda x: np.add.accumulate(x, axis=1) + len(x) * x.size, X)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_places_that_are_inputs_count_from_the_end_too(dtype):
    wide = np.arange(2000, dtype=np.float32).reshape(1000, 2)
    i = np.array([-1, 0, 99, -100] if dtype[0] == "i" else [255, 0, 99, 100]).astype(dtype)
    agrees(lambda x, i: [x[i], x.T[:, i], np.take(x, i, axis=0), np.take_along_axis(x, i[:, None], 0)], wide, i)
    rows = t.dim("R", max=9)
    x, places = t.input("x", (rows, 2)), t.input("i", (3,), "int64")
    given = {"x": wide[:7], "i": np.array([-7, -1, 2])}
    (found,) = evaluate(Graph.of(x[places]).bind({"R": 7}), given)
    np.testing.assert_array_equal(found, wide[:7][given["i"]])


def test_tables_and_buffers_that_are_made_like_a_traced_array():
    table = np.arange(12.0).reshape(4, 3)

    def buffer(x):
        y = np.zeros(9, np.float32, like=x)
        y[2:6] = x[0]
        return y

    agrees(lambda i: [np.array(table, like=i)[i], np.array([2, 3, 5, 7], np.int8, like=i)[i] * i], np.array([3, 0, -4]))
    agrees(
        lambda x: [buffer(x), np.full((2, 4), 7, like=x) + x[:2], np.arange(4, like=x) * x, x @ np.eye(4, 2, like=x)], X
    )
    with pytest.raises(TraceError, match=r"np\.array of a traced array"):
        trace(lambda x: np.array([x, x], like=x), [X])


def test_arrays_as_indices():
    agrees(
        lambda x: [
            x[[0, -1]],
            x[:, np.array([3, 0, 3])],
            x[np.array([True, False, True])],
            x[np.int64(-1)],
            x[..., [-2]],
        ],
        X,
    )
    x = t.input("x", (3, 4))
    for key in ([3], [-4], np.ones(4, bool)):
        with pytest.raises(ShapeError):
            x[key]
    for key in ("a", 1.0, True, [0.5], x > 0, ([0], [1])):
        with pytest.raises(UsageError):
            x[key]


def test_methods_agree_with_those_of_arrays():
    for call in (
        lambda x: [x.std(0), x.var(1, ddof=1), x.prod(), x.argmax(), x.argmin(1), x.cumsum(0), x.all(), x.any(1)],
        lambda x: [
            x.clip(0.2, 0.6),
            x.ravel(),
            x.flatten(),
            x.copy(),
            x.dot(Y.T),
            x.swapaxes(0, 1),
            x.transpose(1, 0),
            x.T.trace(),
        ],
        lambda x: [
            x.astype(np.float64),
            x.astype(int),
            x.round(1),
            x.repeat(2, axis=0),
            x.argsort(),
            x.take([1]),
            x[None].squeeze(0),
        ],
    ):
        agrees(call, X)


def test_what_cannot_be_traced_is_named():
    x = t.input("x", (3, 3))
    for call, message in (
        (lambda: np.linalg.svd(x), "np.linalg.svd"), (lambda: np.sum(x, out=X), "out"), (lambda: np.add(x, 1, out=X), "not traced"),
        (lambda: np.power.accumulate(x), "np.power"), (lambda: np.asarray(x), "no values yet"),
        (lambda: float(x), "no values yet"), (lambda: np.where(x > 0), "depends on values"), (lambda: x + "a", "a str"),
        (lambda: None * x, "NoneType"), (lambda: np.split(x, 2), "equal division"), (lambda: len(t.input("y", ())), "no length"),
        (lambda: np.einsum("ij->k", x), "subscript"), (lambda: np.pad(x, 1, mode="mean"), "mode"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            call()


@pytest.mark.parametrize("power", [1, 2, 3, 7, 20, 2**100])
def test_matrix_powers_are_made_by_squaring(power):
    square = np.float32([[0, 1], [1, 0]])
    agrees(lambda x: np.linalg.matrix_power(x, power), square)
    agrees(lambda x: np.linalg.matrix_power(x, power), np.int32([[1, 2], [3, 4]]))
    assert len(trace(lambda x: np.linalg.matrix_power(x, power), [square]).nodes()) < 250


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.isclose(x, 2, atol=0, rtol=0.4999999999999999), lambda x: np.isclose(x, -2, rtol=1.4999999999999998, atol=0),
        lambda x: np.isclose(x, np.float64(0.9999999999999998), atol=0, rtol=0), lambda x: np.nan_to_num(x, nan=np.inf, posinf=999), lambda x: np.nan_to_num(x, posinf=-np.inf, neginf=7),
        lambda x: np.nan_to_num(x, nan=-0.0, posinf=np.nan), lambda x: np.cov(x[:4].reshape(2, 2), ddof=5),
        lambda x: np.cov(x[:0]), lambda x: np.cov(np.stack([x[:3], x[1:4]]), ddof=3),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings(
    "ignore:Degrees of freedom", "ignore:Mean of empty", "ignore:invalid value", "ignore:divide by zero"
)
def test_limits_of_numpys_functions(function):
    """Python numbers take the dtype of the array, replacements are not replaced, and no degrees of freedom are left."""
    values = np.float32([1, 2, -1, 0.5, np.nan, np.inf, -np.inf])
    agrees(function, values)
    (found,) = evaluate(trace(function, [values]), {"x": values})
    with np.errstate(all="ignore"):
        assert np.array_equal(np.signbit(found) & (found == 0), np.signbit(function(values)) & (found == 0))


def test_one_bound_is_enough_for_clip():
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    for function in (
        lambda a: a.clip(0),
        lambda a: a.clip(max=1),
        lambda a: a.clip(None, 1),
        lambda a: a.clip(0, max=1),
        lambda a: a.clip(-1, 1),
    ):
        (found,) = evaluate(trace(function, [x]), {"a": x})
        assert np.array_equal(found, function(x)) and found.dtype == x.dtype


@pytest.mark.parametrize("side", ["left", "right"])
def test_nan_is_sorted_last(side):
    x = np.array([np.nan, 1, 0.5, np.inf, -np.inf, -0.0], np.float32)
    for borders in ([-1.0, 0, 1], [-1.0, 0, 1, np.nan, np.nan]):
        (found,) = evaluate(trace(lambda x, b=borders: np.searchsorted(b, x, side), [x]), {"x": x})
        np.testing.assert_array_equal(found, np.searchsorted(borders, x, side))
    with pytest.raises(TraceError, match="sorted"):
        trace(lambda x: np.searchsorted([0.0, np.nan, 1.0], x, side), [x])


@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_padding_of_convolutions_is_not_multiplied(function, mode):
    x, y = np.array([1, np.nan, 3, np.inf, 2, 5], np.float32), np.array([np.inf, 2, 1], np.float32)
    graph = trace(lambda x, y: function(x, y, mode), [x, y])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(graph, {"x": x, "y": y})[0], function(x, y, mode))


@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8])
def test_the_middle_of_convolutions_of_even_and_odd_widths(function, width):
    x = np.arange(1, 9, dtype=np.float32) ** 2
    for mode in ("full", "same", "valid"):
        agrees(lambda x, m=mode: function(x, x[:width] + 1, m), x)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.astype(">f4"), lambda x: np.zeros_like(x, dtype=">f8"), lambda x: np.astype(x, np.dtype(">i2"))],
)
def test_another_byte_order_is_refused(function):
    with pytest.raises(TraceError, match="byte order"):
        trace(lambda x: (function(x), x), [X])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.dot(x, 2), lambda x: np.inner(2, x), lambda x: x.dot(2), lambda x: np.tensordot(x, 2, 0),
        lambda x: np.einsum("ij,->ij", x, 2), lambda x: np.kron(x, 2), lambda x: np.outer(x, 2),
    ],
)  # fmt: skip
def test_python_numbers_are_arrays_of_64_bits_in_products(function):
    """np.multiply(uint8, 2) is uint8 and wraps; np.dot(uint8, 2) is int64."""
    agrees(function, np.array([[200, 7], [127, 128]], np.uint8))
    agrees(function, np.array([[100, -7], [127, -128]], np.int8))


@pytest.mark.parametrize("order", ["F", "A", "K"])
@pytest.mark.parametrize(
    "function", [np.ravel, lambda x, order: x.flatten(order), lambda x, order: x.reshape(4, -1, order=order)]
)
def test_orders_that_depend_on_memory_are_refused(function, order):
    """A program takes arrays of every memory layout; NumPy's result differs by layout there."""
    with pytest.raises(TraceError, match="order"):
        trace(lambda x: function(x, order=order), (X,))
    if function is np.ravel:
        agrees(lambda x: np.ravel(x, order=order), X[0])


def test_arrays_with_operators_of_their_own_are_refused():
    x = np.ones((2, 2), np.float32)
    program = tg.optimize(lambda x: x * x, [x], measure=False, backend="numpy")
    for example in (np.ma.masked_less(x, 0), x.view(np.recarray)):
        with pytest.raises(UsageError, match="operators of its own"):
            trace(lambda x: x * x, [example])
    with pytest.raises(UsageError, match="mask"):
        program(np.ma.masked_greater(x, 0))
    assert type(program(x.view(np.recarray))) is np.ndarray


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.mean(a, axis=1, dtype="int32"),  # the sum wraps, the quotient is cut
        lambda a: np.mean(a, dtype="int32", keepdims=True),
        lambda a: np.nanmean(a, axis=0, dtype="int32"),
        lambda a: np.mean(a, dtype="int32", where=a > 5),
        lambda a: np.quantile(a, [0.25, 0.6]),  # the gap between neighbours wraps
        lambda a: np.percentile(a, 30, axis=1),
        lambda a: np.median(a, axis=0),
        lambda a: np.var(a, axis=0, ddof=5),
        lambda a: np.std(a, ddof=12),
        lambda a: np.negative(a.astype("uint64"), where=a > 5, out=np.zeros_like(a, dtype="int16")),
    ],
)
def test_integers_wrap_and_are_cut_as_in_numpy(function):
    a = np.array([[6, -7, 2**31 - 1], [8, 8, -(2**31)]], np.int32)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(function, a)


@pytest.mark.parametrize("function", [np.var, np.std, np.nanvar, np.nanstd])
def test_variances_in_integers_are_refused(function):
    with pytest.raises(TraceError, match="variance in uint8"):
        trace(lambda a: function(a, dtype="uint8"), [np.arange(4)])


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.sum(a, axis=0),
        lambda a: np.add.reduce(a, axis=-1, initial=2.5),
        lambda a: np.logical_xor.reduce(a, axis=0, keepdims=True, initial=-1.5),
        lambda a: np.subtract.reduce(a, axis=0),
        lambda a: np.hypot.reduce(-a, axis=0),
        lambda a: np.hypot.reduce(np.reshape(-a, (1, 1)), axis=1),
    ],
)
def test_values_without_axes_are_reduced_along_the_first(function):
    agrees(function, np.array(1.5, np.float32))


def test_a_cast_that_ends_the_process_is_refused():
    with pytest.raises(TraceError, match="equiv"):
        trace(lambda a: np.add(a, 300, casting="equiv"), [X])


@pytest.mark.parametrize("equation", ["ii->i", "ij->ji", "ij"])
def test_a_product_without_a_sum_is_a_view(equation):
    """NumPy's einsum returns writable memory of its only operand."""

    def written(a):
        a = a.copy()
        part = np.einsum(equation, a)
        part += 1
        return a

    with pytest.raises(TraceError, match="share its memory"):
        trace(written, [X[:, :3]])
    agrees(lambda a: np.einsum("ij->i", a.copy()) + 1, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: np.power(a, b, where=b >= 0, out=np.zeros_like(a)),
        lambda a, b: np.power(2, b, where=b[:1] > 0, out=a.copy()),
        lambda a, b: np.power(a, -1, where=False, out=np.zeros_like(a)),
        lambda a, b: np.power(a, -1.0, where=a > 1, out=a.astype("float64")),
    ],
)
def test_negative_powers_that_where_leaves_out_are_not_computed(function):
    agrees(function, np.array([[1, 2], [3, 4]]), np.array([[1, -2], [0, -3]]))


def test_negative_powers_that_where_selects_are_refused():
    with pytest.raises(TraceError, match="negative integer powers"):
        tg.optimize(lambda a: np.power(a, -1, where=a > 1, out=a.copy()), (np.arange(4),), backend="numpy", budget=1)


@pytest.mark.parametrize(
    "function",
    [
        *(lambda a, q=q: np.quantile(a, q, axis=1) for q in (0, 1, 0.0, 1.0, 0.5, 0.75, [0, 1], [0.0, 0.3])),
        *(lambda a, q=q: np.percentile(a, q, axis=1) for q in (0, 100, 50)),
        lambda a: np.median(a, axis=1),
        lambda a: np.median(a[:, 1:], axis=1),
        lambda a: np.median(a, axis=(0, 1), keepdims=True),
        lambda a: np.nanmax(a, axis=0, initial=3.0),
        lambda a: np.nanmin(a * np.nan, initial=3.0),
    ],
)
def test_quantiles_of_infinities_are_numpys(function):
    inf = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(function, np.array([[1, 2.5, inf], [-inf, 2.5, 3], [inf] * 3, [-inf, 1, inf], [1, 2, np.nan]]))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.linalg.multi_dot([a, a.T, a.astype("int32")]),
        lambda a: np.linalg.multi_dot([a[:1], a.T, a.astype("int32")]),
        lambda a: np.linalg.multi_dot([a[:, 0], a.T, a.astype("int32")]),
        lambda a: np.linalg.multi_dot([a[0], a.T, a[:, 1].astype("int32")]),
        lambda a: np.vander(a[:, 0]),
    ],
)
def test_products_of_integers_wrap_in_numpys_order_and_dtype(function):
    agrees(function, np.arange(-128, 128, 11, dtype=np.int8)[:16].reshape(4, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.linalg.multi_dot([a.astype("int8")] * 4),
        lambda a: np.hypot.reduce(a, where=a > 0),
        lambda a: np.repeat(a[0, 0], 2, axis=0),
    ],
)
def test_what_numpy_orders_otherwise_is_refused(function):
    with pytest.raises(TraceError):
        trace(function, [X[:, :3]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_powers_have_whole_logarithms(dtype: str) -> None:
    """`floor(log10(x))`, the number of digits, was 0 for 10.0, and `exp2(x).astype(int)` 7 for 3.0."""
    k = np.arange(16.0, dtype=dtype)
    cases = (
        (np.log2, 2**k, k),
        (np.log10, 10 ** (k % 8), k % 8),
        (np.exp2, k - 8, 2 ** (k - 8)),
        (np.cbrt, (k - 8) ** 3, k - 8),
    )
    for call, x, whole in cases:
        (found,) = evaluate(trace(lambda x, call=call: call(x), [x]), {"x": x})
        np.testing.assert_array_equal(found, whole, str(call))
    edge = np.array([0.0, -0.0, np.inf, np.nan, 5e-40], dtype)
    for call in (np.log2, np.log10, np.exp2, np.cbrt):
        (found,) = evaluate(trace(lambda x, call=call: call(x), [edge]), {"x": edge})
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(found, call(edge), rtol=1e-5)
