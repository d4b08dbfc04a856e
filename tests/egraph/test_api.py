"""Builders: what operands, axes, dtypes and sizes may be, and what is said of others."""

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
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
