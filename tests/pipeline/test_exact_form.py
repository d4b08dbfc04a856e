"""Tolerance "exact" of functions and modules: results have the bits of the caller's function, or the call ends in
NoPlanError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import NoPlanError

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1e-40, -1e-40, 1.1754944e-38, 3.4e38,
     -3.4e38, 1e20, -1e-20, 3.1415927, 0.1, -0.3, 10, -88, 7.3, -20, 0.99999994, 8388609.0, -4.5e15],
    np.float32,
)  # fmt: skip
FAST: dict[str, Any] = {"tolerance": "exact", "measure": False, "budget": 0.3}


def bits_differ(a: Any, b: Any) -> bool:
    same = ((a == b) & (np.signbit(a) == np.signbit(b))) | ((a != a) & (b != b))
    return a.dtype != b.dtype or not same.all()


def of_numpy() -> dict[str, Callable[..., Any]]:
    """Every ufunc of one or two floats that can be traced, and operations on a result's sign."""
    ufuncs = {n: getattr(np, n) for n in sorted(dir(np)) if isinstance(getattr(np, n), np.ufunc)}
    names = {id(u): n for n, u in ufuncs.items()}  # one name of each
    found = {n: u for n, u in ufuncs.items() if names[id(u)] == n and u.nout == 1 and u.signature is None and u.nin <= 2
             and "f" * u.nin in {t.partition("->")[0] for t in u.types} and n not in ("nextafter", "spacing")}  # fmt: skip
    return {
        **found, "clip": lambda x: np.clip(x, -0.0, 1.0), "zero times": lambda x: x * 0.0, "plus zero": lambda x: x + 0.0,
        "from zero": lambda x: 0.0 - x, "round": lambda x: np.round(x, 1), "inverse": lambda x: x**-1.0,
    }  # fmt: skip


@pytest.mark.parametrize("group", range(4))
def test_results_have_the_bits_of_numpy(group: int) -> None:
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(SPECIAL, SPECIAL))
    functions = list(of_numpy().values())[group::4]
    two = [isinstance(f, np.ufunc) and f.nin == 2 for f in functions]
    whole = lambda x, y: [f(x, y) if t else f(x) for f, t in zip(functions, two)]
    with np.errstate(all="ignore"):
        program = tg.optimize(whole, (np.ones_like(x), np.ones_like(y)), **FAST)
        for own, found in zip(whole(x, y), program(x, y), strict=True):
            assert not bits_differ(own, found)


@pytest.mark.parametrize("name", ["relu", "exp", "sinh", "gelu", "remainder"])
def test_results_have_the_bits_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    functions = torch.nn.functional if name == "gelu" else torch

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return getattr(functions, name)(x, *([-1.5] if name == "remainder" else []))

    x = torch.from_numpy(SPECIAL)
    program = tg.optimize(Module().eval(), (torch.ones_like(x),), **FAST)
    assert not bits_differ(Module()(x).numpy(), program(x).numpy())


def test_other_bits_without_the_function_are_refused() -> None:
    weights = np.arange(9, dtype=np.float32).reshape(3, 3) / 7
    function = lambda x: np.cosh(x @ weights)
    program = tg.optimize(function, (weights,), **FAST)
    assert program.report.runs == "caller" and "other bits" in program.report.compared
    with pytest.raises(NoPlanError, match="no plan gives the bits of the function"):
        tg.optimize(function, (weights,), allow_caller=False, **FAST)


def test_plans_of_equal_bits_run() -> None:
    program = tg.optimize(lambda x: np.maximum(x, 1.0) * 2.0 + 1.0, (SPECIAL,), **FAST)
    assert program.report.runs == "program"


@pytest.mark.parametrize("name", ["sinh", "arcsinh", "cbrt"])
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    program = tg.optimize(getattr(np, name), (np.ones(2, np.float32),), measure=False, budget=0.3, allow_caller=False)
    assert np.signbit(program(np.array([-0.0, 0.0], np.float32))).tolist() == [True, False]


def test_numbers_among_the_results_are_compared() -> None:
    program = tg.optimize(lambda x: (2 * x, 3, {"rows": x.shape[0]}), (np.ones((2, 3)),), **FAST)
    doubled, three, sizes = program(np.ones((2, 3)))
    assert (doubled == 2).all() and three == 3 and sizes["rows"] == 2
