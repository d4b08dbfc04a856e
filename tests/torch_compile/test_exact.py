"""Tolerance "exact" under torch.compile: a program runs only if its bits are eager's, also at special floats; the first
call's check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensor_graphs as tg

torch = pytest.importorskip("torch")
from tensor_graphs.torch_compile.eager_comparison import differs, with_rounding_noise  # noqa: E402
from tensor_graphs.torch_compile.exact import unequal_bits  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings", "programs_win")
EXACT = {"wait": True, "measure": False, "effort": 0, "budget": 0.5, "tolerance": "exact"}
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.3, 1e-40, 3.4e38, -88.0, 7.3, -20.0, 8388609.0, -2.5, 1e-20]


@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (lambda x: torch.exp(x) * 2.0, "eager"),
        (lambda x: torch.relu(x) * 1.0, "eager"),  # the sign of a zero
        (lambda x: x.softmax(0) + 1.0, "eager"),
        (lambda x: torch.where(x > 1.0, x * 2.0 + 1.0, -x), "program"),
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_programs_run_only_with_the_bits_of_eager(function: Callable[[Any], Any], runs: str, gradients: bool) -> None:
    compiled = torch.compile(function, backend=tg.torch_compile.backend, options=EXACT)
    x = torch.randn(16, generator=torch.Generator().manual_seed(0))
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            compiled(x.clone().requires_grad_(gradients))
        found = tg.torch_compile.last_report()
        assert found is not None and found.runs == runs, found
        assert runs == "program" or "eager's" in found.why
        special = torch.tensor(SPECIAL).requires_grad_(gradients)
        own, other = (f(special) for f in (function, compiled))
        assert not unequal_bits(other, own)
        if gradients:
            (a,), (b,) = (torch.autograd.grad(y, special, torch.ones_like(y)) for y in (own, other))
            assert not unequal_bits(b, a)


def test_weights_and_written_arguments_are_compared_in_place() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.linspace(-1, 1, 8))
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.seen += x
            return (x + 1.0) * self.scale

    module = Module().eval()
    compiled = torch.compile(module, backend=tg.torch_compile.backend, options=EXACT)
    x = torch.randn(8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for count in range(1, 4):
            assert torch.equal(compiled(x), (x + 1.0) * module.scale)
            torch.testing.assert_close(module.seen, count * x)  # no trial call wrote to it
    assert tg.torch_compile.last_report().runs == "program"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("found", "expected", "differ"),
    [
        ([INF, 1.0], [INF, 1.0], False), ([-INF, 1.0], [INF, 1.0], True), ([NAN, 1.0], [INF, 1.0], True),
        ([NAN, 1.0], [NAN, 1.0], False), ([1e200, 1e200], [1e200, -1e200], True), ([1e200, 1e200], [1e200, 1e200], False),
        ([1e-3, 1.0], [0.0, 1.0], True),
    ],
)  # fmt: skip
def test_the_first_call_of_a_program_compares_infinities_and_huge_numbers(
    found: list[float], expected: list[float], differ: bool
) -> None:
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (found, expected))
    assert bool(differs([a], [b])) is differ


def test_small_results_beside_large_ones_may_round_otherwise() -> None:
    """The gradient of a bias before a norm is zero but for rounding; with 16-bit values more of it is rounding."""
    large = torch.full((8,), 100.0)
    for off, half, differ in ((0.05, "", True), (5e-4, "", False), (0.05, "bfloat16", False), (5.0, "bfloat16", True)):
        assert bool(differs([large, torch.full((8,), off)], [large, torch.zeros(8)], half=half)) is differ
    found, expected = [torch.full((8,), 1.02)], [torch.ones(8)]  # float32 that is computed from bfloat16
    assert differs(found, expected) and not differs(found, expected, half="bfloat16")


def test_masks_may_differ_where_rounding_noise_changes_them() -> None:
    """Signs of bfloat16 activations behind several layers; the same share elsewhere is wrong."""
    torch.manual_seed(0)
    weights = [torch.randn(64, 64) / 5 for _ in range(16)]

    def masks(x: Any, *weights: Any, dtype: Any = torch.bfloat16) -> list[Any]:
        found = []
        for w in weights:
            x = (x.to(torch.bfloat16).to(dtype) @ w.to(torch.bfloat16).to(dtype)).relu()
            x = x - x.mean(0) / 2
            found.append(x <= 0)
        return found

    args = [torch.randn(512, 64), *weights]
    expected, other = masks(*args), masks(*args, dtype=torch.float32)
    again = lambda: masks(*with_rounding_noise(args, "bfloat16"))
    assert "differ from eager" in differs(other, expected)
    assert not differs(other, expected, half="bfloat16", again=again)
    wrong = [*other[:-1], other[-1] ^ (torch.rand(512, 64) < 0.1)]
    assert "of result 15 differ" in differs(wrong, expected, half="bfloat16", again=again)
    halves = with_rounding_noise([torch.ones(8, dtype=torch.bfloat16), torch.arange(3), torch.ones(8)], "bfloat16")
    assert halves[0].dtype == torch.bfloat16 and halves[1].tolist() == [0, 1, 2] and (halves[2] != 1).all()
