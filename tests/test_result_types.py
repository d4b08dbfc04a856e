"""Results of programs have the containers of the function's results: plain and named tuples, lists, dicts."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensor_graphs as tg

Pair = namedtuple("Pair", "low high")
FAST: dict[str, Any] = {"measure": False, "budget": 0.3}
X = np.ones(4, np.float32)


class Result(NamedTuple):
    values: Any
    rest: Any


@pytest.mark.parametrize("own", [True, False])
def test_named_tuples_of_functions(own: bool, tmp_path: Path) -> None:
    function = lambda x: {"a": Pair(x + 1.0, [Result(x, None)])}
    for _ in range(2):  # the second plan is a cached one
        program = tg.optimize(function, (X,), allow_caller=own, **FAST)
        found = program(X)["a"]
        assert type(found) is Pair and type(found.high[0]) is Result and found.high[0].rest is None
        np.testing.assert_array_equal(found.low, X + 1.0)
    program.save(tmp_path / "out")
    saved = tg.load_program(tmp_path / "out")(X)["a"]
    assert type(saved) is tuple and type(saved[1][0]) is tuple
    np.testing.assert_array_equal(saved[0], X + 1.0)


@pytest.mark.parametrize("name", ["named", "max", "aminmax"])
def test_named_tuples_of_modules(name: str) -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Pair(x, x * 2.0) if name == "named" else x.max(0) if name == "max" else torch.aminmax(x)

    x = torch.randn(3, 4)
    program = tg.optimize(Module().eval(), (x,), allow_caller=False, **FAST)
    wanted, found = Module()(x), program(x)
    assert type(found) is type(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
