"""What a forward program saves for the backward pass, and parameters: without copies and conversions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from benchmarks.models.training_models import Attention
from benchmarks.torch_compile.training import always

import tensor_graphs as tg
from tensor_graphs.backends.program.program import Program
from tensor_graphs.torch_compile import traced_graph

torch = pytest.importorskip("torch")
from tests.torch_compile import gpu_attention  # noqa: E402
from tests.torch_compile.quick_searches import QUICK  # noqa: E402

from tensor_graphs.torch_compile.memory_layout import TracedLayouts, arranged, axis_order  # noqa: E402
from tensor_graphs.torch_compile.plain_tensors import PlainTensors  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings")


def test_views_of_parameters_are_made_once() -> None:
    p, x, y = torch.nn.Parameter(torch.randn(3)), torch.randn(3), torch.randn(3, requires_grad=True)
    plain = PlainTensors(3)
    first, second = plain.of([p, x, y]), plain.of([p, x, y])
    assert first[0] is second[0] and first[1] is x and first[2] is not y
    assert all(type(v) is torch.Tensor and not v.requires_grad for v in first)
    p.data = torch.ones(3)
    assert bool((plain.of([p, x, y])[0] == 1).all())
    q = torch.nn.Parameter(torch.zeros(3))
    assert bool((plain.of([q, x, y])[0] == 0).all())


def test_memory_layouts() -> None:
    x = torch.randn(2, 3, 4, 5)
    order = axis_order(x.permute(0, 2, 1, 3))
    assert (
        order == [0, 2, 1, 3] and axis_order(x) is None and axis_order(x[:, :, ::2]) is None and axis_order(3) is None
    )
    part = (
        torch.randn(2, 6, 48).chunk(3, -1)[1].view(2, 6, 2, 8).transpose(1, 2)
    )  # heads of a fused projection: not dense
    assert axis_order(part) == [0, 2, 1, 3] and axis_order(torch.randn(2, 1, 3).expand(2, 4, 3)) is None
    assert arranged(part.contiguous(), axis_order(part)).transpose(1, 2).view(2, 6, 16).shape == (2, 6, 16)
    y = arranged(x, order)
    assert y.stride() == (60, 5, 15, 1) and torch.equal(y, x) and arranged(y, order) is y
    assert arranged(y, None).is_contiguous()
    graph = torch.fx.Graph()
    graph.placeholder("a").meta["val"] = x.permute(0, 2, 1, 3)
    graph.placeholder("n").meta["val"] = 3
    graph.output(())
    found = TracedLayouts(torch.fx.GraphModule({}, graph)).of([x, 3])
    assert found[0].stride() == (60, 5, 15, 1) and found[1] == 3


def heads() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return Attention(16, 2, True), torch.randn(2, 6, 16)


def gradients(call: Any, module: Any, x: Any) -> list[Any]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    call(x).square().sum().backward()
    return [x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize(("backward", "attention"), [("program", "cpu"), ("program", "gpu"), ("eager", "cpu")])
def test_saved_tensors_are_contiguous_also_for_an_eager_backward_pass(
    backward: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gpu_attention.on_cpu() if attention == "gpu" else nullcontext():
        saved_tensors_are_contiguous(backward, monkeypatch)


def saved_tensors_are_contiguous(backward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    if backward == "eager":
        begin = traced_graph.Variant._begin

        def refused(self: Any, part: Any, sizes: Any, options: Any, name: str, *args: Any) -> Any:
            if name.startswith("backward"):
                raise ValueError("no program")
            return begin(self, part, sizes, options, name, *args)

        monkeypatch.setattr(traced_graph.Variant, "_begin", refused)
    call = traced_graph.TracedGraph.__call__

    def watched(self: Any, *args: Any) -> Any:
        found = call(self, *args)
        if self.kind == "forward":
            saved[:] = found[1:]
        return found

    monkeypatch.setattr(traced_graph.TracedGraph, "__call__", watched)
    module, x = heads()
    expected = gradients(module, module, x)
    with always():
        compiled = tg.compile(module, **QUICK)
        for _ in range(4):
            found = gradients(compiled, module, x)
    report = tg.torch_compile.last_report()
    assert report is not None and report.runs == "program", report
    assert report.traced[1].parts[0].state.startswith("program" if backward == "program" else "not imported")
    forward = next(g for g in traced_graph_of(report) if g.kind == "forward")
    traced = forward.module.graph.output_node().args[0][1:]
    permuted = [i for i, n in enumerate(traced) if axis_order(n.meta.get("val")) is not None and n.op != "placeholder"]
    assert permuted and all(saved[i].is_contiguous() for i in permuted)
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-5)


def test_programs_are_told_which_inputs_are_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both passes, so that a CUDA graph reads them where they are."""
    told: list[set[str]] = []
    given = Program.steady

    def steady(self: Any, inputs: Any) -> Any:
        found = list(inputs)
        told.append({self.input_names[i] for i in found})
        return given(self, found)

    monkeypatch.setattr(Program, "steady", steady)
    module, x = heads()
    with always():
        compiled = tg.compile(module, **QUICK)
        for _ in range(3):
            gradients(compiled, module, x)
    weights = [name for name in told[0] if name.startswith("primals")]
    assert len(told) == 2 and len(weights) == len(told[0]) == len(list(module.parameters()))
    assert told[1] and told[1] < told[0]  # the products' weights; not what the forward pass computed


def traced_graph_of(report: Any) -> Any:
    from tensor_graphs.torch_compile.compiled_graph import _graphs

    return next(g.traced for g in _graphs if g.report is report)
