"""Modules with odd features, compiled and compared with eager calls: results, mutated inputs, gradients."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.backends.program.program import Program
from tensor_graphs.errors import WorkerError
from tensor_graphs.torch_compile.runner import PartRunner

from .quick_searches import IN_C, QUICK

torch = pytest.importorskip("torch")
compiled_graph = pytest.importorskip("tensor_graphs.torch_compile.compiled_graph")
effects = pytest.importorskip("tensor_graphs.torch_compile.effects").effects
nn, F = torch.nn, torch.nn.functional

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "ignored_warnings", "programs_win")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Equal random numbers in every test."""
    torch.manual_seed(0)


class Call(nn.Module):
    """A module of a function and submodules."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.function(self, *args, **named)


def x(*shape: int) -> Any:
    return torch.randn(shape)


@dataclass
class Case:
    """A module, the arguments of its calls, and how many programs must run (graphs whose report says "program")."""

    module: Callable[[], Any]
    calls: list[Callable[[], tuple[Any, ...]]]
    programs: int = 1
    named: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    in_c: bool = False  # whether kernels in C may run


def written(m: Any, a: Any) -> Any:
    a.mul_(2.0)
    m.count += 1
    return torch.tanh(a) * m.count


def broken(m: Any, a: Any) -> Any:
    y = torch.tanh(a) * 2 + 1
    torch._dynamo.graph_break()
    return torch.sigmoid(y) * y + 3


def viewed(m: Any, a: Any) -> Any:
    y = torch.relu(m.linear(a)) * 2
    row, turned, (left, right) = y.view(-1), y.T[1:], y.chunk(2, 1)
    torch._dynamo.graph_break()
    y.add_(100)
    left[0] = 7
    return row.sum(), turned * 2, right.exp(), row.view(3, 8) + 1, y


def overlapping(m: Any, a: Any, b: Any) -> Any:
    a.mul_(2)
    b[0] += 1
    m.count += 1
    return torch.tanh(a) * 2 + 1, b.exp() * 2


def overlap(start: int) -> tuple[Any, Any]:
    a = x(4, 3)
    return (a, a[start:]) if start else (a[1:3], a.T[1:])


def randomized(m: Any, a: Any) -> Any:
    y = torch.tanh(a @ m.w.T).exp()
    return torch.sigmoid(y + torch.bernoulli(torch.ones_like(y))) * 2  # no builder for random numbers


def flattened(m: Any, a: Any) -> Any:
    y = torch.tanh(a).reshape(-1, 4) * 2
    return torch.sigmoid(y + torch.bernoulli(torch.ones_like(y))).reshape(a.shape) * a.exp()


def cached(m: Any, a: Any, at: Any) -> Any:
    m.cache.index_copy_(0, at, a)
    return F.softmax(m.cache @ a.T, 0)


def marked(a: Any) -> Any:
    torch._dynamo.mark_dynamic(a, 0)
    return a


CASES: dict[str, Case] = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), [lambda: (x(3, 8),)] * 2, in_c=True),
    "mutation": Case(lambda: Call(written, count=torch.zeros(())), [lambda: (x(3, 4),)] * 3),
    "alias of an input": Case(lambda: Call(lambda m, a: (a, a[1:], torch.tanh(a) * 2 + 1)), [lambda: (x(3, 4),)] * 2),
    "graph break": Case(lambda: Call(broken), [lambda: (x(3, 4),)] * 2, programs=2),
    "dynamic batch": Case(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        [lambda n=n: (x(n, 8),) for n in (3, 5, 7, 2)], programs=1, compile={"dynamic": True},
    ),
    "dict and None": Case(lambda: Call(lambda m, a: {"y": a.exp() * 2 + 1, "n": None, "t": (a.sin() * 2,)}), [lambda: (x(3, 4),)] * 2),
    "int argument": Case(lambda: Call(lambda m, a, n: torch.tanh(a * n) + n), [lambda n=n: (x(3, 4), n) for n in (2, 5, 9, 5)], 2),
    "keyword": Case(lambda: Call(lambda m, a, *, b: torch.tanh(a) * b + 1), [lambda: (x(3, 4),)] * 2, named={"b": torch.ones(4)}),
    "batch norm, eval": Case(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), [lambda: (x(2, 3, 8, 8),)] * 2),
    "batch norm, training": Case(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), [lambda: (x(6, 4),)] * 3),
    "a result of another memory layout than traced": Case(
        lambda: Call(lambda m, a: m.norm(a.transpose(1, 2)).transpose(1, 2).reshape(-1, 4).tanh() * 2, norm=nn.BatchNorm1d(4)).eval(), [lambda: (x(3, 5, 4),)] * 2,
    ),
    "an operator that only raises errors": Case(lambda: Call(lambda m, a: torch.linalg.inv(a).tanh() * 2 + 1), [lambda: (x(3, 3),)] * 2),
    "numbers that change": Case(lambda: Call(lambda m, a, n: torch.tanh(a * n) + n), [lambda n=n: (x(3, 4), n) for n in (1.5, 2.5, 3.5)], -1),
    "dropout, eval": Case(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU()).eval(), [lambda: (x(6, 4),)] * 2),
    "attention": Case(lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(), [lambda: (x(2, 5, 8),) * 3] * 2),
    "encoder layer": Case(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), [lambda: (x(2, 5, 8),)] * 2),
    "sdpa": Case(lambda: Call(lambda m, q: F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)), [lambda: (x(2, 2, 5, 8),)] * 2),
    "lstm": Case(lambda: Call(lambda m, a: m.lstm(a)[0].tanh() * 2 + 1, lstm=nn.LSTM(4, 4)), [lambda: (x(3, 2, 4),)] * 2, programs=-1),
    "tied weights": Case(
        lambda: Call(lambda m, i: F.softmax(m.e(i) @ m.e.weight.T, -1), e=nn.Embedding(10, 4)), [lambda: (torch.arange(6),)] * 2
    ),
    "no inputs": Case(lambda: Call(lambda m: torch.tanh(m.w) * 2 + 1, w=nn.Parameter(x(4, 4))), [lambda: ()] * 2),
    "cache": Case(
        lambda: Call(cached, cache=torch.zeros(6, 4)), [lambda n=n: (x(1, 4), torch.tensor([n])) for n in (0, 3, 5)]
    ),
    "channels last": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(memory_format=torch.channels_last),
        [lambda: (x(2, 3, 6, 6).to(memory_format=torch.channels_last),)] * 2,
    ),
    "an operator without a builder": Case(lambda: Call(randomized, w=nn.Parameter(x(4, 4))), [lambda: (x(3, 4),)] * 2, programs=1),
    "a quantised layer": Case(
        lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Tanh()), dtype=torch.qint8),
        [lambda: (x(3, 8),)] * 2, programs=-1,
    ),
    "bfloat16": Case(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()).bfloat16(), [lambda: (x(3, 8).bfloat16(),)] * 2),
    "expanded input": Case(lambda: Call(lambda m, a: torch.exp(a) * 2 - a), [lambda: (x(4, 1).expand(4, 3),)] * 2),
    "sliced input": Case(lambda: Call(lambda m, a: torch.exp(a) @ a.T), [lambda: (x(6, 9)[::2, 1:5],)] * 2),
    "another dtype": Case(
        lambda: Call(lambda m, a: torch.exp(a) * 2 - a), [lambda d=d: (x(4, 3).to(d),) for d in (torch.float32, torch.float64, torch.float32)],
        programs=2,
    ),
    "a size far from others": Case(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU()), [lambda n=n: (x(n, 8),) for n in (3, 5, 500, 4)], compile={"dynamic": True},
    ),
    "a marked axis": Case(lambda: Call(lambda m, a: torch.tanh(a) * 2 + 1), [lambda n=n: (marked(x(n, 4)),) for n in (3, 5, 7)]),
    "list and flag": Case(
        lambda: Call(lambda m, a, flag: torch.cat([y.exp() * 2 if flag else y - 1 for y in a])),
        [lambda f=f: ([x(2, 3), x(1, 3)], f) for f in (True, False, True)], programs=2,
    ),
    "views of a result that is written": Case(lambda: Call(viewed, linear=nn.Linear(8, 8)), [lambda: (x(3, 8),)] * 3, programs=2),
    "arguments that share written memory": Case(lambda: Call(overlapping, count=torch.zeros(())), [lambda n=n: overlap(n) for n in (1, 1, 2, 2)], programs=-1),
    "views of a tensor that share written memory": Case(lambda: Call(overlapping, count=torch.zeros(())), [lambda: overlap(0)] * 3, programs=-1),
    "non-contiguous input": Case(lambda: Call(lambda m, a: torch.exp(a) * 2 - a), [lambda: (x(4, 3).T,)] * 2),
}  # fmt: skip


def alike(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Equal structure, types, strides of dense results, and values."""
    leaves, one = torch.utils._pytree.tree_flatten(found)
    others, two = torch.utils._pytree.tree_flatten(expected)
    assert one == two
    for a, b in zip(leaves, others):
        assert type(a) is type(b)
        if isinstance(b, torch.Tensor):
            # strides of axes of size 1 mean nothing, and differ between eager's own kernels
            steps = [[s for s, n in zip(x.stride(), x.shape, strict=True) if n != 1] for x in (a, b)]
            assert a.dtype == b.dtype and a.shape == b.shape and steps[0] == steps[1]
            torch.testing.assert_close(
                a,
                b,
                rtol=1e-2 if b.dtype == torch.bfloat16 else tolerance,
                atol=1e-2 if b.dtype == torch.bfloat16 else tolerance,
            )


def ran() -> int:
    return sum(r.runs == "program" for r in tg.torch_compile.reports())


@pytest.mark.parametrize("name", CASES)
def test_a_module_gives_what_eager_gives(name: str) -> None:
    case = CASES[name]
    module = case.module()
    reference, before = copy.deepcopy(module), ran()
    compiled = tg.compile(module, **(IN_C if case.in_c else QUICK), **case.compile)
    with torch.no_grad():
        for make in case.calls:
            args = make()
            other = copy.deepcopy(args)
            torch.manual_seed(1)
            found = compiled(*args, **case.named)
            torch.manual_seed(1)
            alike(found, reference(*other, **case.named))
            alike(args, other)
            alike(dict(module.named_buffers()), dict(reference.named_buffers()))
    assert case.programs < 0 or ran() - before == case.programs, tg.torch_compile.last_report()


def test_an_output_that_is_an_input_is_the_callers_tensor() -> None:
    a = x(3, 4)
    with torch.no_grad():
        compiled = tg.compile(lambda a: (a, torch.tanh(a) * 2 + 1), **QUICK)
        compiled(a)
        assert compiled(a)[0] is a


@pytest.mark.parametrize("gradients", [False, True])
def test_views_of_an_argument_lie_in_its_memory(gradients: bool) -> None:
    a, before = x(3, 4).requires_grad_(gradients), ran()
    compiled = tg.compile(lambda a: (a.unbind(0)[1], a.chunk(2, 1)[1], torch.tanh(a) * 2 + 1), **QUICK)
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            row, half, _ = compiled(a)
            assert row.data_ptr() == a[1].data_ptr() and half.data_ptr() == a[:, 2:].data_ptr()
    assert ran() == before + 1


def test_autocast() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    compiled, a, before = tg.compile(module, **QUICK), x(3, 8), ran()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            alike(compiled(a), module(a))
    assert ran() == before + 1


def drawn(a: Any) -> Any:
    """Random operators of which some need no program's result and others two programs' results."""
    chosen = torch.multinomial(a.abs() * 2 + 1, 2)
    noise = torch.rand(3, 4)
    dropped = F.dropout((a.tanh() * 2 + noise).t(), 0.5, True)  # in the order of memory
    return chosen, dropped.exp() * 2, torch.randperm(5), noise + torch.randn(4)


def test_random_operators_keep_their_order() -> None:
    compiled, a, before = tg.compile(drawn, **QUICK), x(3, 4), ran()
    for step in range(3):
        found = []
        for call in (compiled, drawn):
            torch.manual_seed(step)
            found.append((*call(a), torch.get_rng_state()))
        alike(*found)
    assert ran() == before + 1


def test_equal_random_operators_draw_different_numbers() -> None:
    """AOTAutograd merges equal calls of those that it does not know: both noises were one."""

    def noisy(a: Any) -> Any:
        return (torch.randn_like(a) * a + torch.randn_like(a)).tanh() * torch.empty_like(a).uniform_() + 1

    compiled, before = tg.compile(noisy, **QUICK), ran()
    for step in range(2):
        a, found = x(3, 4), []
        for call in (compiled, noisy):
            torch.manual_seed(step)
            found.append(call(a.requires_grad_()))
        alike(*found)
    assert ran() == before + 1


def test_a_product_of_two_sizes_has_both() -> None:
    """The first input of the second part has an axis of batch times length, which were taken for one size."""
    module = Call(flattened)
    compiled = tg.compile(module, dynamic=True, **QUICK)
    with torch.no_grad():
        for n, t in ((3, 5), (2, 7), (4, 6)):
            a = x(n, t, 4)
            found, expected = ((torch.manual_seed(0), m(a))[1] for m in (compiled, module))
            alike([found], [expected])
    report = tg.torch_compile.last_report()
    assert report.runs == "program" and len(report.traced[0].parts) == 2 and not report.warnings, report


def test_tensors_without_defined_values_are_no_results_of_programs() -> None:
    """The memory that `torch.empty` gives is not that of the eager call: the comparison of the first call refused the
    program.
    """

    def filled(a: Any) -> Any:
        return a.tanh() * 2 + torch.empty_like(a).uniform_(), a.new_empty(2, 3).exponential_() * 2 + 1

    compiled, a, before = tg.compile(filled, **QUICK), x(3, 4), ran()
    torch.full((2, 3), 7.0), torch.full((3, 4), 7.0)  # memory that the next calls may get
    for step in range(2):
        found = []
        for call in (compiled, filled):
            torch.manual_seed(step)
            found.append(call(a))
        alike(*found)
    report = tg.torch_compile.last_report()
    assert ran() == before + 1 and not report.warnings
    assert any("undefined" in i.reason for i in report.traced[0].islands)


def test_places_of_equal_keys_may_leave_a_program() -> None:
    """As those of the tokens of an expert. PyTorch leaves their order open, so that the first call's comparison refused
    the program."""

    def dispatched(a: Any, keys: Any) -> Any:
        order = keys.argsort()
        rows = a[order].tanh() * 2
        rows = rows * torch.histc(rows, 2, -2, 2).sum()  # no builder: an operator between two programs
        return rows[order.argsort()].exp() + 1

    compiled = tg.compile(dispatched, **QUICK)
    for _ in range(3):
        args = x(90, 2), torch.arange(90) % 3
        alike([compiled(*args)], [dispatched(*args)])
    (traced,) = tg.torch_compile.last_report().traced
    assert len(traced.parts) == 2 and all(p.state.startswith("program") for p in traced.parts)


@pytest.mark.usefixtures("new_garbage_only")
@pytest.mark.parametrize("gradients", [False, True])
def test_weights_and_their_programs_are_freed_with_the_module(gradients: bool) -> None:
    """Dynamo keeps compiled graphs in the globals of the module's class."""
    module = Call(lambda m, a: torch.tanh(m.linear(a)) * 2, linear=nn.Linear(8, 8))
    compiled, before = tg.compile(module, **QUICK), ran()
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            y = compiled(x(3, 8))
            if gradients:
                y.sum().backward()
    assert ran() == before + 1
    weights = [weakref.ref(p) for p in module.parameters()]
    programs = weakref.WeakSet(p for p in gc.get_objects() if type(p) is Program)
    assert programs
    del module, compiled, y
    for _ in range(2):  # finalizers that the first collection calls free the programs
        gc.collect()
    assert not any(w() is not None for w in weights)
    assert gradients or not programs  # with gradients weights are inputs, and programs stay with Dynamo's graph


@pytest.mark.usefixtures("new_garbage_only")
def test_searches_end_with_the_weights() -> None:
    module = Call(lambda m, a: torch.tanh(m.linear(a)) * 2, linear=nn.Linear(8, 8))
    compiled = tg.compile(module, budget=60)
    with torch.no_grad():
        compiled(x(3, 8))
    (search,) = (
        next(g for g in compiled_graph._graphs if g.report is tg.torch_compile.last_report())
        .traced[0]
        .variants[0]
        .searches
    )
    del module, compiled
    gc.collect()
    assert search.wait(300)
    with pytest.raises(WorkerError, match=r"do not exist|changed before the search"):
        search.program()


def test_gradients_inside_of_inference_mode() -> None:
    w = x(4)
    module = lambda a: a @ torch.func.jacrev(lambda v: torch.tanh(v * w))(w * 1.5)
    with torch.inference_mode():
        fast, a = torch.compile(module, backend=tg.torch_compile.backend, options=QUICK), x(3, 4)
        alike(fast(a), module(a))


def test_dropout_of_no_elements_is_its_operand() -> None:
    with torch.no_grad():
        fast, a = tg.compile(lambda a: F.dropout(a, 0.5), **QUICK), torch.zeros(0, 3)
        assert fast(a) is a and fast(a) is a


def test_inference_mode_and_weights_that_change() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled, a = tg.compile(module, **QUICK), x(3, 8)
    with torch.inference_mode():
        alike(compiled(a), module(a))
    for _ in range(6):  # each a new version; after some, weights become inputs
        with torch.no_grad():
            module[0].weight.mul_(1.5)
        with torch.inference_mode():
            alike(compiled(a), module(a))
            alike(compiled(a), module(a))
    report = tg.torch_compile.last_report()
    assert report is not None and report.runs == "program" and report.traced[0].frozen == 0
    (graph,) = (g for g in compiled_graph._graphs if g.report is report)
    assert len(graph.traced[0].variants) == 1  # those of earlier versions are freed
    module[0].weight.data = torch.ones(8, 8)
    with torch.inference_mode():
        alike(compiled(a), module(a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_overwritten_through_data_is_noticed(dtype: Any) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(dtype)
    compiled, a = tg.compile(module, **QUICK), x(3, 8).to(dtype)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(2):
                alike(compiled(a), module(a))
            module[0].weight.data.copy_(x(8, 8))
        alike(compiled(a), module(a))
        module[0].bias.data[3] = 9.0  # of small weights every element is compared
        alike(compiled(a), module(a))


def test_a_call_whose_results_are_not_finite_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may overflow elsewhere than eager, and differs in no other call."""
    differs = lambda found, expected, *rest: "" if bool(expected[0].isfinite().all()) else "other infinities"
    monkeypatch.setattr("tensor_graphs.torch_compile.runner.differs", differs)
    made: list[PartRunner] = []
    make = lambda *given: made.append(PartRunner(*given)) or made[-1]
    monkeypatch.setattr("tensor_graphs.torch_compile.traced_graph.PartRunner", make)
    fast = torch.compile(lambda a: torch.tanh(a) * 2 + a, backend=tg.torch_compile.backend, options=QUICK)
    for given, runs in ((torch.full((3, 4), torch.inf), "searching"), (x(3, 4), "program")):
        with torch.no_grad():
            torch.testing.assert_close(fast(given), torch.tanh(given) * 2 + given)
        assert tg.torch_compile.last_report().runs == runs
    made[-1].verified = False  # as of a part whose trial ran eagerly
    drawn_twice = lambda *given: pytest.fail("random numbers are drawn twice")
    monkeypatch.setattr("tensor_graphs.torch_compile.compiled_graph.CompiledGraph._eager", drawn_twice)
    given = torch.full((3, 4), torch.inf)
    with torch.no_grad():
        torch.testing.assert_close(fast(given), torch.tanh(given) * 2 + given)


def test_weights_that_change_until_the_search_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Averaged weights are put in place for a while through `data`, as libraries for moving averages do."""
    submitted: list[Any] = []
    monkeypatch.setattr("tensor_graphs.torch_compile.traced_graph.submit", submitted.append)
    module, a = nn.Linear(8, 8), x(3, 8)
    fast, kept = torch.compile(module, backend=tg.torch_compile.backend, options=QUICK), module.weight.clone()
    with torch.no_grad():
        fast(a)
        module.weight.data.mul_(1.001)
        submitted[0].run_here()
        module.weight.data.copy_(kept)
        for _ in range(2):
            alike(fast(a), module(a), 1e-6)
        submitted[1].run_here()
        alike(fast(a), module(a), 1e-6)
    assert tg.torch_compile.last_report().runs == "program"


def test_calls_with_and_without_gradients_alternate() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    reference = copy.deepcopy(module)
    compiled = tg.compile(module, **QUICK)
    for _ in range(3):
        a = x(3, 8)
        with torch.no_grad():
            alike(compiled(a), reference(a))
        alike(
            torch.autograd.grad(compiled(a).sum(), list(module.parameters())),
            torch.autograd.grad(reference(a).sum(), list(reference.parameters())),
        )
        with torch.inference_mode():
            alike(compiled(a), reference(a))


def test_two_instances_of_a_class_have_programs_of_their_own() -> None:
    modules = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)]
    compiled, a = [tg.compile(m, **QUICK) for m in modules], x(3, 8)
    with torch.no_grad():
        for _ in range(2):
            for c, m in zip(compiled, modules):
                alike(c(a), m(a))


# ---------------------------------------------------------------- training
TRAINED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), lambda: x(3, 8)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2),
                              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        lambda: x(2, 3, 16, 16),
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), lambda: x(2, 5, 8)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Softmax(-1)), lambda: torch.arange(6)),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.AlphaDropout(0.2), nn.TransformerEncoderLayer(8, 2, 16, 0.3), nn.Tanh()),
        lambda: x(3, 8),
    ),
    "depthwise and transposed": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 4, 2, 2, groups=2)), lambda: x(2, 4, 5, 5),
    ),
    "checkpointing": (
        lambda: Call(lambda m, a: torch.utils.checkpoint.checkpoint(m.body, a, use_reentrant=False).tanh() * 2,
                     body=nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))),
        lambda: x(3, 8),
    ),
    "dropout in checkpoints": (
        lambda: Call(
            lambda m, a: torch.utils.checkpoint.checkpoint(
                lambda b: torch.utils.checkpoint.checkpoint(m.body, b, use_reentrant=False).sin(), a, use_reentrant=False
            ).tanh() * 2,
            body=nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)),
        ),
        lambda: x(3, 8),
    ),
    "complex numbers": (
        lambda: Call(lambda m, a: (torch.view_as_real(torch.view_as_complex(a.view(3, 4, 2)).conj() * m.w) * 2).tanh(),
                     w=nn.Parameter(torch.randn(4, dtype=torch.complex64))),
        lambda: x(3, 8),
    ),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.SiLU()), lambda: x(2, 3, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_those_of_eager(name: str) -> None:
    make, example = TRAINED[name]
    module = make()
    reference, before = copy.deepcopy(module), ran()
    compiled = tg.compile(module, **(IN_C if name in ("mlp", "conv") else QUICK))
    for step in range(3):
        a = example()
        b = a.clone()
        for one in (a, b):
            if one.is_floating_point():
                one.requires_grad_()
        for call, given, owner in ((compiled, a, module), (reference, b, reference)):
            torch.manual_seed(step)
            owner.zero_grad()
            call(given).square().sum().backward()
        found = {n: p.grad for n, p in module.named_parameters()} | {"input": a.grad}
        expected = {n: p.grad for n, p in reference.named_parameters()} | {"input": b.grad}
        alike(found, expected, 1e-3)
        alike(dict(module.named_buffers()), dict(reference.named_buffers()))
    report = tg.torch_compile.last_report()
    assert report is not None and ran() == before + 1, report
    if name == "dropout":  # masks are drawn before one program of each pass, and are its inputs
        assert [len(traced.parts) for traced in report.traced] == [1, 1]
        assert {i.operator for i in report.traced[0].islands} == {"aten.empty_strided.default", "aten.bernoulli.p"}


def test_a_backward_pass_may_run_again() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    compiled, a, before = tg.compile(module, **QUICK), x(3, 8), ran()
    for _ in range(2):
        loss, wanted = (m(a).square().sum() for m in (compiled, module))
        for _ in range(2):
            found, expected = (
                torch.autograd.grad(y, list(module.parameters()), retain_graph=True) for y in (loss, wanted)
            )
            alike(found, expected, 1e-3)
    assert ran() == before + 1


def test_gradients_that_are_differentiated_again_stay_eager() -> None:
    """AOTAutograd's backward passes raise an error for that, and programs would come into use in some later step."""
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    compiled, a = tg.compile(module, **QUICK), x(3, 8).requires_grad_()
    for _ in range(3):
        penalties = []
        for call in (compiled, module):
            (slope,) = torch.autograd.grad(call(a).square().sum(), a, create_graph=True)
            penalties.append(torch.autograd.grad(slope.square().sum(), list(module.parameters())))
        alike(*penalties, 1e-3)
    report = tg.torch_compile.last_report()
    assert report.runs == "eager" and "differentiated again" in report.why


@pytest.mark.parametrize("tolerance", ["eager", "exact"])
def test_a_compiled_optimizer_steps_once(tolerance: str) -> None:
    """Parameters are tensors of the optimizer's graph, not arguments: trial calls stepped them as well."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    reference, before = copy.deepcopy(module), ran()
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.5) for m in (module, reference)]
    step = tg.compile(optimizers[0].step, **QUICK, tolerance=tolerance)
    for _ in range(3):
        a = x(3, 4)
        for m in (module, reference):
            m.zero_grad()
            m(a).square().sum().backward()
        step()
        optimizers[1].step()
        alike(module.state_dict(), reference.state_dict())
    assert tolerance == "exact" or ran() > before


@pytest.mark.parametrize("first", [2, 4], ids=["overlapping", "apart"])
def test_written_arguments_that_overlap_in_another_way(first: int) -> None:
    """AOTAutograd's graph reads one argument from the other's memory, at the offset of the first call."""

    def write(a: Any, b: Any) -> Any:
        a.add_(1)
        b.mul_(2)
        return torch.tanh(a) + b.sum()

    compiled, before = tg.compile(write, **QUICK), ran()
    for start in (first, first, 6 - first, 3, first):
        one = x(8, 6)
        other = one.clone()
        alike([compiled(one[:4], one[start : start + 4]), one], [write(other[:4], other[start : start + 4]), other])
    assert ran() == before + 1


def test_operators_with_effects_are_called_once() -> None:
    """Collectives would wait for other processes in each trial call."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    calls = []

    @torch.library.custom_op("tensor_graphs_tests::noted", mutates_args=())
    def noted(a: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return a * 2

    noted.register_fake(lambda a: torch.empty_like(a))
    _register_effectful_op(torch.ops.tensor_graphs_tests.noted.default, _EffectType.ORDERED)
    compiled, a = tg.compile(lambda a: torch.tanh(noted(torch.sin(a) * 2)) + 1, **QUICK), x(3, 4)
    for _ in range(3):
        alike([compiled(a)], [torch.tanh(torch.sin(a) * 4) + 1])
    assert len(calls) == 3 and "trial calls would repeat" in tg.torch_compile.last_report().why
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (graph.placeholder("a"),)))
    assert "wait_tensor" in effects(torch.fx.GraphModule(nn.Module(), graph))


def test_parameters_of_fully_sharded_data_parallel_stay_eager() -> None:
    """Their memory is resized between calls, which a NumPy array of it forbids: the next pass raised an error."""
    flat, a = nn.Parameter(x(8)), x(3, 4)
    flat._is_flat_param = True
    compiled = tg.compile(lambda a, w: torch.tanh(a @ w) * 2, **QUICK)
    for _ in range(2):
        w = flat.view(4, 2)
        alike([compiled(a, w)], [torch.tanh(a @ w) * 2])
    report = tg.torch_compile.last_report()
    assert report.runs == "eager" and "FullyShardedDataParallel" in report.why and flat.untyped_storage().resizable()


def test_forward_mode_differentiation_stays_eager() -> None:
    """Programs would drop tangents, which exist without gradients, too."""
    from torch.autograd import forward_ad

    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    compiled, a, before = tg.compile(module, **QUICK), x(3, 8), ran()
    with torch.no_grad():
        for _ in range(3):
            compiled(a)
        with forward_ad.dual_level():
            given = forward_ad.make_dual(a, torch.ones_like(a))
            found, expected = (forward_ad.unpack_dual(m(given)).tangent for m in (compiled, module))
            alike([found], [expected])
        alike([compiled(a)], [module(a)])
    assert ran() == before + 1


def test_batch_norm_trains_at_every_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of elements is divided inside of the backward program. Running statistics are written by one copy of
    each dtype."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    reference = copy.deepcopy(module)
    compiled = tg.compile(module, dynamic=True, **QUICK)
    written: list[int] = []
    together = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: (written.append(len(a)), together(a, b)))
    for n in (3, 5, 4, 7):
        a = x(n, 4)
        for call in (compiled, reference):
            call(a).square().mean().backward()
        alike([p.grad for p in module.parameters()], [p.grad for p in reference.parameters()], 1e-3)
    alike([*module.buffers()], [*reference.buffers()], 1e-5)
    assert {*written} == {1, 2}  # the counter; mean and variance
    assert not any(r.warnings for r in tg.torch_compile.reports()[-2:])
