"""Training of small models: every operator of both passes in programs, gradients and loss curves of eager."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks import training  # noqa: E402
from tests.torch_compile import gpu_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings")
QUICK = {"measure": False, "effort": 0, "budget": 1, "verify": False}


@pytest.mark.parametrize("name", ["gpt2", "resnet18"])
def test_programs_train_as_eager_does(name: str) -> None:
    row = training.trained(name, scale="tiny", steps=4, **QUICK)
    assert row["runs"] == "program" and row["in_programs"] == row["operators"], row["report"]
    assert row["error"] < 4 * row["eager_error"] + 1e-6
    assert row["losses"] != row["eager_losses"]  # rounded otherwise: programs have run
    assert row["apart"] < 4 * row["eager_apart"] + 1e-5
    assert row["losses"][-1] != row["losses"][0]
    why, times = row["report"]["why"], (row["report"]["program_us"], row["report"]["eager_us"])
    assert why == "programs run in any case: {:.1f} µs a call, eager {:.1f} µs".format(*times)
    assert min(times) > 20.0  # measured


def test_programs_train_with_attention_of_a_gpu() -> None:
    with gpu_attention.on_cpu():
        row = training.trained("gpt2", scale="tiny", steps=2, **QUICK)
    assert row["runs"] == "program" and row["in_programs"] == row["operators"], row["report"]
    assert row["error"] != row["eager_error"]  # rounded otherwise: programs have run
    assert row["error"] < 4 * row["eager_error"] + 1e-6 and row["apart"] < 4 * row["eager_apart"] + 1e-5
