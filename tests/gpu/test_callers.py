"""The caller's own module on a GPU runs in place of a program that is slower."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.pipeline.execution import caller_timing

torch = pytest.importorskip("torch")
NO_GPU = backend("torch_cuda").unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]


def module() -> tuple[Any, Any]:
    """A module on the GPU with an example input."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512))
    return layers.half().cuda().eval(), torch.randn(64, 512, dtype=torch.float16, device="cuda")


def test_a_faster_module_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"caller": 1.0, "wrapped": 1.0, "program": 2.0}
    monkeypatch.setattr(caller_timing, "sampled", lambda calls, **how: {n: [took[n]] * 9 for n in calls})
    layers, x = module()
    made = tg.optimize(layers, (x,), budget=4)
    assert made.report.runs == "caller", made.report.compared
    with torch.no_grad():
        want = layers(x)
    assert torch.equal(made(x), want) and made(x).is_cuda and not made(x).requires_grad
    for given in (x.cpu(), x.cpu().numpy()):  # the compiled plan runs
        found = np.asarray(torch.as_tensor(made(given)).cpu().float())
        np.testing.assert_allclose(found, want.cpu().float(), rtol=2e-2, atol=2e-2)


def test_whole_calls_of_both_are_timed() -> None:
    layers, x = module()
    made = tg.optimize(layers, (x,), budget=4)
    assert made.report.caller_us > 0 and made.report.program_us > 0 and "caller" in made.report.compared
    assert type(made) is Program or made.report.caller_us < made.report.program_us
    again = tg.optimize(layers, (x,), budget=4, allow_caller=False)
    assert type(again) is Program and "allow_caller=False" in again.report.compared
