"""The `torch.compile` backend on a GPU: programs on device tensors, gradients, sizes, streams."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend
from tensor_graphs.torch_compile import judge

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

NO_GPU = backend("torch_cuda").unavailable()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
gpu_only = pytest.mark.parametrize("_", [pytest.param(0, marks=on_gpu, id="gpu")])

#: Options of a search that takes a few seconds.
QUICK = {"wait": True, "budget": 5}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs win every comparison."""

    def timed(calls: dict[str, Callable[[], Any]], on_gpu: bool, first: Callable[[], None]) -> dict[str, list[float]]:
        assert on_gpu
        for call in calls.values():
            first()
            call()
        return {"eager": [2.0] * 5, "program": [1.0] * 5}

    monkeypatch.setattr(judge, "timed", timed)
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def runs() -> str:
    report = tg.torch_compile.last_report()
    assert report is not None
    return report.runs


class Norm(nn.Module):
    """A residual block with a root mean square norm, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.up, self.down = nn.Parameter(torch.ones(64)), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Any) -> Any:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain
        return x + self.down(F.silu(self.up(y)))


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...], str]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), (8, 64), "float32"),
    "half": (Norm, (8, 64), "bfloat16"),
    "conv": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()).eval(), (2, 8, 16, 16), "float32"),
    "attention": (lambda: nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True).eval(), (2, 16, 64), "float32"),
}  # fmt: skip


@gpu_only
@pytest.mark.parametrize("name", MODULES)
def test_inference(name: str, _: int) -> None:
    make, shape, dtype = MODULES[name]
    module = make().cuda().to(getattr(torch, dtype))
    compiled = tg.compile(module, **QUICK)
    limit = 5e-2 if dtype == "bfloat16" else 2e-3
    for _step in range(3):
        x = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))
        with torch.no_grad():
            found, expected = compiled(x), module(x)
        assert found.device == expected.device and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)
    assert runs() == "program", tg.torch_compile.last_report()


@gpu_only
def test_one_program_serves_several_sizes(_: int) -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda()
    compiled = tg.compile(module, dynamic=True, **QUICK)
    with torch.no_grad():
        for rows in (8, 12, 8, 12):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-3, atol=2e-3)
    assert runs() == "program", tg.torch_compile.last_report()


#: Modules in training, the shape of their input, and whether autocast is on.
TRAINED: dict[str, tuple[Callable[[], Any], tuple[int, ...], bool]] = {
    "mlp": (*MODULES["mlp"][:2], False), "conv": (*MODULES["conv"][:2], False),
    "dropout": (lambda: nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.3), nn.GELU(), nn.Linear(128, 64)), (8, 64), False),
    "autocast": (lambda: nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), (2, 16, 64), True),
}  # fmt: skip


@gpu_only
@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name: str, _: int) -> None:
    make, shape, half = TRAINED[name]
    module = make().cuda()
    reference = copy.deepcopy(module)
    compiled = tg.compile(module, **QUICK)
    for step in range(3):
        x = torch.randn(shape, device="cuda")
        for call, owner in ((compiled, module), (reference, reference)):
            torch.manual_seed(step)  # of dropout's masks
            owner.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                y = call(x)
            y.float().square().sum().backward()
    limit = 0.1 if half else 1e-2
    for found, expected in zip(module.parameters(), reference.parameters()):
        assert float((found.grad - expected.grad).norm()) <= limit * float(expected.grad.norm()) + 1e-3
    assert runs() == "program", tg.torch_compile.last_report()


@gpu_only
def test_a_stream_of_the_caller_and_a_mutated_buffer(_: int) -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), device="cuda"))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return torch.tanh(x) * self.count + 1

    module, stream = Counted(), torch.cuda.Stream()
    compiled, x = tg.compile(module, **QUICK), torch.randn(8, 64, device="cuda")
    with torch.no_grad(), torch.cuda.stream(stream):
        for step in range(1, 5):
            torch.testing.assert_close(compiled(x), torch.tanh(x) * step + 1, rtol=1e-3, atol=1e-3)
    assert float(module.count) == 4


@gpu_only
def test_a_background_search_of_device_weights(_: int) -> None:
    module = MODULES["mlp"][0]().cuda()
    compiled, x = tg.compile(module, budget=5), torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        assert runs() == "searching"
        assert tg.torch_compile.wait(200)
        torch.testing.assert_close(compiled(x), module(x), rtol=2e-3, atol=2e-3)
    assert runs() == "program", tg.torch_compile.last_report()
