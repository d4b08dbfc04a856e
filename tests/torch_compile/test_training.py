"""Training of small models: every operator of both passes in programs, gradients and loss curves of eager."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_compile import training  # noqa: E402
from tests.torch_compile import gpu_attention  # noqa: E402

import tensor_graphs as tg  # noqa: E402
from tensor_graphs.torch_compile import judge  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings")
QUICK = {"measure": False, "effort": 0, "budget": 1, "verify": False}


@pytest.fixture(autouse=True)
def briefly_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are timed for a tenth of a second: the programs run whatever their times are (`training.always`)."""
    monkeypatch.setattr(judge, "MOST_S", 0.1)


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


def test_norms_of_16_bit_images_train_in_programs() -> None:
    """Under autocast on a CPU, statistics are float32 and traced with 16 bits; the gradient of a bias before a norm is
    zero but for rounding."""
    nn = torch.nn
    norms = nn.BatchNorm2d(8), nn.LayerNorm([8, 6, 6]), nn.GroupNorm(2, 8)
    module = nn.Sequential(*(x for norm in norms for x in (nn.Conv2d(8, 8, 1), norm)))
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    with training.always():
        compiled = tg.compile(module, wait=True, **QUICK)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                y = compiled(x)
            y.float().square().sum().backward()
    report = tg.torch_compile.last_report()
    assert report is not None and report.runs == "program"
    assert [p.state.startswith("program") for t in report.traced for p in t.parts] == [True, True], report
