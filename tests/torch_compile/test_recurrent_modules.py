"""Recurrent layers under torch.compile: captured as one operator without gradients, called between graphs with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

import tensor_graphs as tg

from .quick_searches import IN_C, QUICK

torch = pytest.importorskip("torch")
nn = torch.nn
pytest.importorskip("tensor_graphs.torch_compile.compiled_graph")

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings", "programs_win")

KINDS = pytest.mark.parametrize("kind", ["LSTM", "GRU"])


@pytest.fixture(autouse=True)
def seed() -> None:
    """Equal random numbers in every test."""
    torch.manual_seed(0)


class Tagger(nn.Module):  # type: ignore[misc,name-defined]
    """A layer before a recurrent one, a head, and the last states."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(6, 8), getattr(nn, kind)(8, 10, **options)
        self.head = nn.Linear((options.get("proj_size") or 10) * (1 + options.get("bidirectional", False)), 3)

    def forward(self, x: Any) -> Any:
        out, last = self.layer(torch.tanh(self.first(x)))
        return self.head(out).sigmoid(), out, last


OPTIONS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "batch first, both directions": {"num_layers": 2, "batch_first": True, "bidirectional": True},
    "no biases": {"bias": False, "batch_first": True},
    "projected": {"proj_size": 4, "num_layers": 2},
}


def compiled(module: Any, options: dict[str, Any] = QUICK) -> Any:
    return torch.compile(module, backend=tg.torch_compile.backend, options=options)


def compare(found: Any, wanted: Any) -> None:
    """Results of calls are equal up to rounding, with equal strides."""
    leaves = [torch.utils._pytree.tree_leaves(y) for y in (found, wanted)]
    for y, want in zip(*([v for v in values if v is not None] for values in leaves), strict=True):
        narrow = want.dtype == torch.bfloat16
        torch.testing.assert_close(y, want, rtol=2e-2 if narrow else 1e-5, atol=1e-2 if narrow else 1e-6)
        strides = [[s for s, size in zip(v.stride(), v.shape) if size > 1] for v in (y, want)]
        assert strides[0] == strides[1] and y.requires_grad == want.requires_grad


def operators() -> list[tuple[str, int, int]]:
    """(kind, operators, operators in programs) of each traced graph of the last report."""
    report = tg.torch_compile.last_report()
    return [] if report is None else [(t.kind, t.nodes, sum(p.nodes for p in t.parts)) for t in report.traced]


def whole_layer() -> bool:
    """Whether the last graph is in programs, with its recurrent layer as one operator."""
    ((kind, count, inside),) = operators()
    return kind == "inference" and count == inside < 20


@pytest.mark.parametrize(
    ("kind", "options", "search"),
    [
        ("LSTM", "one layer", IN_C),
        ("LSTM", "no biases", QUICK),
        ("GRU", "batch first, both directions", QUICK),
        ("RNN", "one layer", QUICK),
        ("LSTM", "projected", QUICK),
    ],
)
def test_without_gradients_a_layer_is_one_operator(kind: str, options: str, search: dict[str, Any]) -> None:
    module, x = Tagger(kind, **OPTIONS[options]).eval(), torch.randn(4, 7, 6)
    fast = compiled(module, search)
    with torch.no_grad():
        for _ in range(2):
            compare(fast(x), module(x))
        assert whole_layer()


@KINDS
def test_changing_sizes_give_one_dynamic_graph(kind: str) -> None:
    """The first graph is of fixed size, the second serves all sizes."""
    module = Tagger(kind, batch_first=True, bidirectional=True).eval()
    fast = compiled(module)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for batch, steps in ((2, 5), (3, 9), (6, 2)):
            x = torch.randn(batch, steps, 6)
            compare(fast(x), module(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 2


def test_tracing_a_layer_takes_as_many_operators_for_any_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    mode, counts = torch._subclasses.fake_tensor.FakeTensorMode, []
    own, thread = mode.__torch_dispatch__, get_ident()

    def counted(*args: Any, **named: Any) -> Any:
        counts[-1] += get_ident() == thread
        return own(*args, **named)

    monkeypatch.setattr(mode, "__torch_dispatch__", counted)
    for steps in (4, 40):
        torch._dynamo.reset()
        counts.append(0)
        with torch.no_grad():
            compiled(Tagger("GRU", num_layers=2, bidirectional=True).eval())(torch.randn(steps, 3, 6))
    assert counts[0] == counts[1] > 0


def test_with_gradients_the_layer_is_called_between_graphs() -> None:
    """And a first call with gradients does not keep later calls from being captured."""
    module, x = Tagger("LSTM").eval(), torch.randn(4, 7, 6)
    other, fast = copy.deepcopy(module), compiled(module)
    for _ in range(3):
        for m, call in ((module, fast), (other, other)):
            m.zero_grad()
            call(x)[0].square().sum().backward()
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
    assert [kind for kind, *_ in operators()] == ["forward", "backward"]
    with torch.no_grad():
        for _ in range(2):
            compare(fast(x), module(x))
    assert whole_layer()


def test_a_layer_with_dropout_is_captured_in_evaluation() -> None:
    module, x = Tagger("GRU", num_layers=2, dropout=0.5), torch.randn(4, 7, 6)
    fast = compiled(module)
    with torch.no_grad():
        fast(x)
        module.eval()
        for _ in range(2):
            compare(fast(x), module(x))
        assert whole_layer()
        module.train()
        torch.manual_seed(1)
        found = fast(x)
        torch.manual_seed(1)
        compare(found, module(x))


def test_numbers_of_a_layer_that_is_called_between_graphs() -> None:
    class Stateful(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(6, 10, 2)

        def forward(self, x: Any) -> Any:
            first = torch.ones(self.layer.num_layers, x.shape[1], self.layer.hidden_size)
            return self.layer(x.tanh() * 2, first)[0].exp() * 2

    module, x = Stateful(), torch.randn(4, 3, 6)
    fast = compiled(module)
    torch.testing.assert_close(fast(x), module(x))
    assert operators()  # Dynamo has captured graphs


def random_numbers(module: Any, x: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return module.train()(x)


def autocast(module: Any, x: Any) -> Any:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return module(x)


class Inside(nn.Module):  # type: ignore[misc,name-defined]
    """A layer that is called without gradients, then with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 10)

    def forward(self, x: Any) -> Any:
        first = self.layer(x)[0] * 2
        with torch.enable_grad():
            return first, self.layer(x)[0] * 2


def packed(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 3, 2, 2, 1, 1])))


class Derivatives(nn.Module):  # type: ignore[misc,name-defined]
    """A layer's result and its forward derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(6, 10)

    def forward(self, x: Any) -> Any:
        return torch.func.jvp(lambda v: self.layer(v)[0] * 2, (x,), (x.cos(),))


class Sequence(nn.Module):  # type: ignore[misc,name-defined]
    """The function of a layer, over one sequence x[T, I] without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(6, 10)

    def forward(self, x: Any) -> Any:
        weights = list(self.layer.parameters())
        out, last = torch.rnn_tanh(x[:, 0], x.new_zeros(1, 10), weights, True, 1, 0.0, False, False, False)
        return out * out.dim(), last


def without_gradients(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(x)


UNUSUAL: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "dropout": (lambda: Tagger("GRU", num_layers=2, dropout=0.5), random_numbers),
    "autocast": (lambda: Tagger("LSTM"), autocast),
    "gradients inside": (Inside, without_gradients),
    "forward derivatives": (Derivatives, without_gradients),
    "no batch": (Sequence, without_gradients),
    "packed sequence": (lambda: nn.GRU(6, 10), packed),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_has_no_operator_runs_as_eagerly(name: str) -> None:
    make, call = UNUSUAL[name]
    module = make().eval()
    fast, x = compiled(module), torch.randn(4, 7, 6)
    for _ in range(3):
        compare(call(fast, x), call(module, x))


@KINDS
def test_other_backends_break_their_graphs_as_before(kind: str) -> None:
    captured: list[Any] = []

    def other(graph: Any, inputs: Any) -> Any:
        captured.append(graph)
        return graph

    module, x = Tagger(kind).eval(), torch.randn(4, 7, 6)
    compiled(module)
    with torch.no_grad():
        torch.compile(module, backend=other)(x)
    assert not captured and not torch._dynamo.config.allow_rnn


def test_whole_calls_of_a_tagger_go_to_programs() -> None:
    module, x = Tagger("LSTM").eval(), torch.randn(4, 7, 6)
    fast = tg.compile(module, **QUICK)
    with torch.no_grad():
        for _ in range(3):
            compare(fast(x), module(x))
    report = tg.torch_compile.last_report()
    assert report is not None and report.runs == "program" and whole_layer()
