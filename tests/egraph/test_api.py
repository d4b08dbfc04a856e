"""Builders: what operands, axes, dtypes and sizes may be, and what is said of others."""

import copy
import operator
import pickle

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import ShapeError, UsageError

X = tg.input("x", (3, 4))


def test_dtypes_may_be_numpys_and_pythons():
    assert tg.input("x", (3, 4), np.float32) is X and tg.input("x", (3, 4), np.dtype("float32")) is X
    for dtype, name in ((np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16"), (float, "float64"), (bool, "bool")):
        assert tg.cast(X, dtype).dtype == X.astype(dtype).dtype == tg.full((2,), 1, dtype).dtype == name
    assert tg.cast(X, np.float32) is X
    for wrong in ("float31", "complex64", object, 3):
        with pytest.raises(ShapeError, match="dtype"):
            tg.cast(X, wrong)


@pytest.mark.parametrize("axis", [2, -3, 7])
def test_axes_outside_the_rank_are_refused(axis):
    for build in (tg.softmax, tg.log_softmax, tg.logsumexp, tg.sum, tg.flip, tg.argmax):
        with pytest.raises(ShapeError, match=f"axis {axis}"):
            build(X, axis)
    with pytest.raises(ShapeError, match="axis"):
        tg.expand_dims(X, axis + np.sign(axis))


def test_powers_of_two_tensors():
    assert (X**X).op == "pow" and (X**2).op == "mul" and (2**X).op == "pow" and (X ** np.ones(4)).op == "pow"


def test_sizes_have_a_range():
    for low, high in ((5, 2), (-1, 3)):
        with pytest.raises(ShapeError, match="no size is"):
            tg.dim("T", min=low, max=high)


def test_what_is_no_operand_is_named():
    for wrong in ("a", None, object(), [X, 1], [[1], [2, 3]]):
        with pytest.raises(UsageError):
            tg.add(X, wrong)
    with pytest.raises(UsageError, match="sizes of the pieces"):
        tg.split(X, 2)


def test_einsum_is_that_of_numpy():
    assert tg.einsum("ij,kj->ik", X, np.ones((5, 4), np.float32)).shape == (3, 5)
    for equation, operands in (("ij,jk", [X]), ("ijk->i", [X]), ("ij->q", [X])):
        with pytest.raises(ShapeError):
            tg.einsum(equation, *operands)


NUMBERS = (0, -1, 3, 300, -300, 2**31, 2**63, 2**70, True, 1.5)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
VALUES = {
    "bool": [True, False], "uint8": [0, 3, 255], "int8": [-128, 3, 44], "int32": [-300, 3, 2**24],
    "int64": [-300, 3, 2**62], "uint64": [0, 3, 2**64 - 1],
}  # fmt: skip


def outcome(compute):
    """The values that NumPy or an expression gives, or None where it raises."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(compute())
    except (TypeError, ValueError, OverflowError, UsageError):
        return None


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "and_", "or_", "lshift", "divmod", *COMPARISONS])
@pytest.mark.parametrize("dtype", VALUES)
def test_operators_with_numbers_are_those_of_numpy_or_refused(dtype, name):
    run = divmod if name == "divmod" else getattr(operator, name)
    x, values = tg.input("x", (len(VALUES[dtype]),), dtype), np.array(VALUES[dtype], dtype)
    for number in NUMBERS:
        if dtype == "bool" and abs(number) > 300:
            continue  # NumPy compares and adds these as Python objects
        for swapped in (False, True):
            order = lambda a, b=number, s=swapped: (b, a) if s else (a, b)
            try:
                found = run(*order(x))
            except UsageError:
                assert name not in COMPARISONS
                continue
            want = outcome(lambda o=order: run(*o(values)))
            got = evaluate(Graph.of(found), {"x": values})
            assert want is not None, (number, swapped)
            assert np.allclose(
                np.asarray(got if name == "divmod" else got[0], float), want.astype(float), rtol=1e-6, equal_nan=True
            )


def test_comparisons_of_uint64_with_signed_integers_are_exact():
    u, i = np.array([0, 2**63, 2**64 - 1, 2**53 + 1], np.uint64), np.array([-1, -5, 2**62, 2**53 + 1])
    x, y = tg.input("x", (4,), "uint64"), tg.input("y", (4,), "int64")
    for name in COMPARISONS:
        run = getattr(operator, name)
        (found, swapped) = evaluate(Graph.of([run(x, y), run(y, x)], inputs=[x, y]), {"x": u, "y": i})
        assert np.array_equal(found, run(u, i)) and np.array_equal(swapped, run(i, u))


def test_operations_without_a_meaning_are_refused():
    b, i = tg.input("b", (3,), "bool"), tg.input("i", (3,), "int8")
    for wrong in (lambda: b - b, lambda: -b, lambda: X & X, lambda: X << 1, lambda: i << 1.5, lambda: i**-1, lambda: pow(i, 2, 3),
                  lambda: f"{X:.2f}", lambda: tg.minimum(i, 300), lambda: tg.full((2,), 2**70, "int64"), lambda: X * 10**400):  # fmt: skip
        with pytest.raises(UsageError):
            wrong()


def test_logical_functions_take_truth_values():
    i = tg.input("i", (3,), "int8")
    (found,) = evaluate(Graph.of(tg.logical_and(i, 1)), {"i": np.array([2, 0, -4], np.int8)})
    assert found.tolist() == [True, False, True]


def test_copies_and_pickles_are_the_expression_itself():
    graph = Graph.of(tg.exp(X) + np.ones(4, np.float32))
    y = graph.outputs[0]
    assert copy.copy(y) is y and copy.deepcopy(y) is y and pickle.loads(pickle.dumps(y)) is y
    assert pickle.loads(pickle.dumps(graph)).outputs[0] is y
