"""Public tensor functions with arguments of any kind: arrays and numbers are tensors, attributes may be positional, and
what does not fit is a named error."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import numeric
from tensor_graphs.errors import TensorGraphsError, UsageError

X = tg.input("x", (3, 4))
ARGUMENTS = (
    X, X, tg.input("b", (4,), "bool"), tg.input("i", (3, 4), "int64"), np.ones((3, 4), np.float32), np.ones(4), [1, 2, 3, 4],
    3.0, 2, -1, 0, None, "a", (1,), (0, 1), float("nan"), True, np.array(["s"]), object(), 1 + 2j, slice(1), {},
    np.float32(2), 10**30, -7, tg.dim("n"),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(numeric.__all__))
def test_any_arguments_are_accepted_or_a_named_error(name: str) -> None:
    rng, function = random.Random(name), getattr(numeric, name)
    for _ in range(60):
        given = [rng.choice(ARGUMENTS) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 5)))]
        try:
            function(*given)
        except (TensorGraphsError, TypeError):
            pass
        except ValueError as error:  # NumPy's, of an array where a truth value belongs
            assert "truth value" in str(error), given


def test_attributes_may_be_positional() -> None:
    assert tg.elu(X, 0.5) is tg.elu(X, alpha=0.5) and tg.hard_sigmoid(X, 0.2, 0.4) is tg.hard_sigmoid(
        X, beta=0.4, alpha=0.2
    )
    assert tg.leaky_relu(X) is tg.leaky_relu(X, alpha=0.01)
    for wrong in (
        lambda: tg.elu(X, 0.5, alpha=1.0),
        lambda: tg.elu(X, 0.5, 0.5),
        lambda: tg.elu(),
        lambda: tg.elu(X, beta=2),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(UsageError, match="alpha='a' of elu is no float"):
        tg.elu(X, "a")
    with pytest.raises(UsageError, match="approximation"):
        tg.gelu(X, approximate="sigmoid")


@pytest.mark.parametrize(
    "call",
    [
        lambda w, b: tg.linear(X, tg.transpose(w), b), lambda w, b: tg.transpose(w), lambda w, b: tg.gather(w, [0, 1]),
        lambda w, b: tg.softmax(b), lambda w, b: tg.concat([w, w]), lambda w, b: tg.where(X[:1] > 0, w, 0.0),
        lambda w, b: tg.layer_norm(w, np.ones(4, np.float32), 0.0 * np.ones(4, np.float32)),
    ],
)  # fmt: skip
def test_arrays_are_constants(call: Any) -> None:
    w, b = np.ones((5, 4), np.float32), np.ones(5, np.float32)
    assert call(w, b) is call(tg.constant(w), tg.constant(b))


def test_signatures_name_operands_and_attributes() -> None:
    import inspect

    assert str(inspect.signature(tg.elu)) == "(x: 'Tensor', alpha: 'float' = 1.0) -> 'Tensor'"
