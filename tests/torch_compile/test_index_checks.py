"""Calls with indices outside of an axis raise eager's errors where programs run, which would take the last element."""

from __future__ import annotations

import pytest

import tensor_graphs as tg

from .quick_searches import QUICK

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings", "programs_win")

GOOD = {"token": [1, 4], "row": [-5, 4], "column": [0, 3], "label": [-100, 3], "step": [0, 2]}


def function(w, token, row, column, label, step):  # type: ignore[no-untyped-def]
    picked = w.gather(1, column.view(1, 2).expand(5, -1))
    loss = F.cross_entropy(w[:2], label)
    return F.embedding(token, w) + w[row] + loss, picked.tanh(), w.index_add(0, token, w[:2]), F.embedding(2 * step, w)


@pytest.fixture
def compiled():  # type: ignore[no-untyped-def]
    return torch.compile(function, backend=tg.torch_compile.backend, options=QUICK)


def test_a_wrong_call_does_not_leave_later_ones_eager(compiled) -> None:  # type: ignore[no-untyped-def]
    w, good = torch.randn(5, 4), {name: torch.tensor(v) for name, v in GOOD.items()}
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(IndexError):
                compiled(w, **{**good, "token": torch.tensor([0, 5])})
        before = torch.get_rng_state()
        compiled(w, **good)
        assert tg.torch_compile.last_report().runs == "program" and torch.equal(before, torch.get_rng_state())


def test_indices_outside_of_an_axis_raise_eagers_errors(compiled) -> None:  # type: ignore[no-untyped-def]
    w = torch.randn(5, 4)
    good = {name: torch.tensor(v) for name, v in GOOD.items()}
    with torch.no_grad():
        for _ in range(2):
            for x, y in zip(compiled(w, **good), function(w, **good), strict=True):
                torch.testing.assert_close(x, y)
        assert tg.torch_compile.last_report().runs == "program"
        for name, value in (
            ("token", 5),
            ("token", -1),
            ("row", 5),
            ("row", -6),
            ("column", -1),
            ("label", 4),
            ("step", 3),
        ):
            given = {**good, name: torch.tensor([0, value])}
            with pytest.raises((IndexError, RuntimeError)) as eager:
                function(w, **given)
            with pytest.raises(eager.type):
                compiled(w, **given)
        assert tg.torch_compile.last_report().runs == "program"
        torch.testing.assert_close(compiled(w, **good)[0], function(w, **good)[0])
