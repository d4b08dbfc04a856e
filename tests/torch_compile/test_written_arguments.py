"""Arguments that a compiled graph writes: their new values become results (written together: test_modules.py)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tensor_graphs.torch_compile.written_arguments import WrittenArguments, take_writes  # noqa: E402


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
