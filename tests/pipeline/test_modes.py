"""Programs and the modes of Torch around them: autocast, inference mode, a module's training mode."""

from __future__ import annotations

from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.errors import UnsupportedError
from tensor_graphs.pipeline.sources.caller import Caller, CallerProgram

torch = pytest.importorskip("torch")
FAST: dict[str, Any] = {"budget": 1, "measure": False, "allow_caller": False, "backend": "torch"}
F = torch.nn.functional


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Attention of a value with itself, behind a softmax."""

    def forward(self, x: Any) -> Any:
        return F.scaled_dot_product_attention(x, x, x).softmax(-1)


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def drawn(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_calls_under_autocast_have_the_dtypes_of_the_plan() -> None:
    x = drawn(2, 2, 8, 8)
    program = tg.optimize(Attention(), (x,), **FAST)
    want = program(x)
    for fresh in (False, True):
        if fresh:
            program.unbind()
        with autocast():
            found = program(x)
        assert found.dtype == torch.float32 and torch.equal(found, want)


def test_nothing_is_traced_under_autocast() -> None:
    with autocast(), pytest.raises(UnsupportedError, match="autocast is on"):
        tg.optimize(torch.nn.Linear(4, 4), (drawn(2, 4),), **FAST)


def own(module: Any, x: Any) -> Any:
    """A program whose calls run the module itself."""
    program = tg.optimize(module, (x,), **FAST)
    caller = Caller.of(module, (x,), {})
    assert caller is not None
    return CallerProgram.around(program, caller)


def test_the_callers_form_runs_without_autocast() -> None:
    module, x = torch.nn.Linear(8, 4).eval(), drawn(3, 8)
    program = own(module, x)
    with torch.no_grad():
        want = module(x)
    with autocast():
        assert torch.equal(program(x), want) and torch.equal(program.flat(x)[0], want)


def test_a_module_that_is_put_into_training_later_does_not_run() -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).eval(), drawn(3, 8)
    program = own(module, x)
    want = program(x)
    module.train()
    for found in (program(x), program.flat(x)[0]):
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("sized", [False, True])
def test_programs_made_in_inference_mode_run_outside_of_it(sized: bool) -> None:
    module, x = Attention(), drawn(2, 2, 8, 8)
    shapes = {"dynamic_shapes": ({0: torch.export.Dim("b", max=16)},)} if sized else {}
    with torch.inference_mode():
        program = tg.optimize(module, (x,), **FAST, **shapes)
        program.unbind()
        program(x)
    for _ in range(2):
        torch.testing.assert_close(program(x), module(x))
