"""Arguments that a compiled graph writes: their new values are copied together, and are those of eager calls."""

from __future__ import annotations

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

import tensor_graphs as tg  # noqa: E402
from tensor_graphs.torch_compile import judge  # noqa: E402
from tensor_graphs.torch_compile.written_arguments import WrittenArguments, take_writes  # noqa: E402

from .quick_searches import QUICK, timed  # noqa: E402


def test_copies_become_results() -> None:
    graph = torch.fx.Graph()
    a, n, x = (graph.placeholder(name) for name in "anx")
    total, more = graph.call_function(torch.add, (a, x)), graph.call_function(torch.add, (n, 1))
    graph.call_function(torch.ops.aten.copy_.default, (a, total))
    graph.call_function(torch.ops.aten.copy_.default, (n, more))
    graph.output((graph.call_function(torch.mul, (total, 2)),))
    module = torch.fx.GraphModule({}, graph)
    assert take_writes(module) == [0, 1] and not take_writes(module)
    given = [torch.ones(3), torch.zeros((), dtype=torch.int64), torch.full((3,), 4.0)]
    (found,) = WrittenArguments(module, [0, 1])(*given)
    assert found.tolist() == [10.0] * 3 and given[0].tolist() == [5.0] * 3 and given[1].item() == 1
    assert given[0]._version == 1


def test_statistics_of_norms_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.BatchNorm1d(6) for _ in range(3)))
    own, x = deepcopy(module), torch.randn(8, 6)
    fast = tg.compile(module, **QUICK)
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))
    written: list[int] = []
    together = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: (written.append(len(a)), together(a, b)))
    for _ in range(4):
        fast(x).sum().backward()
        own(x).sum().backward()
    for a, b in zip(module.buffers(), own.buffers()):
        torch.testing.assert_close(a, b)
    assert {*written} == {3, 6}  # counters; means and variances
