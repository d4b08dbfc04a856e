"""A graph is compared with the caller's own function or module."""

import dataclasses
import functools
import logging
import os
import random
import time
import types

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.egraph.builders import builders
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import ExportError, TraceError, UnsupportedError
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.trace_checks import trace_check as caller_reference
from tensor_graphs.pipeline.trace_checks import trace_check_large, trace_check_torch, trace_randomness
from tensor_graphs.pipeline.trace_checks.trace_agreement import Rounding
from tensor_graphs.pipeline.trace_checks.trace_outside import outside_reads
from tensor_graphs.verification.reference import with_atomic_ops

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def compared(function, *examples):
    return caller_reference.compare(function, examples, as_graph(function, examples))


def test_functions_that_are_their_graphs():
    assert "itself, on 3 inputs" in compared(lambda a, b: np.where(a == b, a, -b), X, X.copy())
    assert "itself, on 2 inputs" in compared(lambda a: a.sum(0), ((3, 4), "float32"))
    assert "itself" in compared(
        lambda a, flag, s: {"y": a * s if flag else a, "rest": [None, a]}, X, True, np.float32(2)
    )
    assert "itself" in compared(lambda a: (a, a, 2.5), X)


def test_functions_of_free_sizes_are_compared_at_other_sizes():
    rows = tg.dim("T", max=64)
    compare = lambda f: caller_reference.compare(
        f, (((rows, 4), "float32"),), as_graph(f, (((rows, 4), "float32"),)), sizes={"T": 9}
    )
    assert compare(lambda a: a @ a.T).endswith("on 2 inputs, and at 2 other sizes")
    assert compare(lambda a: a[5]).endswith("on 2 inputs, and at 1 other sizes")
    with pytest.raises(TraceError, match="decided while tracing"):
        compare(lambda a: a[: len(str(a.shape[0]))])  # 9 has one digit, 10 has two


@pytest.mark.parametrize(("forward", "differs"), [
    (lambda x: x * 2 if x.shape[1] != 1 else x, {"b": 1, "t": 1}),
    (lambda x: x * 2 if x.shape[0] > 1 and x.shape[1] == 1 else x, {"b": 3, "t": 1}),
    (lambda x: x.squeeze(1) + 1, {"b": 1, "t": 1}),
    (lambda x: x.softmax(1) * x.shape[1], None),
])  # fmt: skip
def test_modules_that_decide_whether_a_free_size_is_1(forward, differs):
    class Module(torch.nn.Module):
        def forward(self, x):
            return forward(x)

    b, t = (torch.export.Dim(n, min=1, max=64) for n in ("b", "t"))
    example = torch.randn(3, 6, 4)
    graph = as_graph(Module(), (example,), dynamic_shapes=({0: b, 1: t},))
    compare = lambda: caller_reference.compare(Module(), (example,), graph)
    if differs is None:
        assert compare().startswith("compared with the module itself")
    else:
        with pytest.raises(TraceError, match=f"decides by a free size.*differs at {differs}: "):
            compare()


@pytest.mark.parametrize(("device", "calls"), [("", 1), ("cuda:0", 0)])
def test_examples_are_not_cut_below_their_indices_on_a_gpu(device, calls):
    """There an index beyond an axis is an error of the device, after which the process cannot use it."""
    x, index = tg.input("x", (tg.dim("rows", max=9), 4)), tg.input("i", (3,), "int64")
    graph, made = Graph.of(builders.gather(x, index), inputs=[x, index]), []

    def outputs(copied):
        made.append(copied)
        raise IndexError

    call = types.SimpleNamespace(device=device, tensors=[torch.ones(5, 4), torch.tensor([4, 0, 2])], outputs=outputs)
    trace_check_torch._compare_least_sizes(call, graph, {"rows": 5}, 0.0, None)
    assert len(made) == calls


def test_what_tracing_decided_is_found():
    calls = []

    def counting(a):
        calls.append(1)
        return a * len(calls)

    for function, message in (
        (lambda a: a if type(a) is np.ndarray else -a, r"at \[\d, \d\] the function gives"), (counting, "twice"),
        (lambda a: a + np.random.rand(), "twice"), (lambda a: a[:2] if type(a) is np.ndarray else a, "graph float32"),
        (lambda a: a.astype(np.float64) if type(a) is np.ndarray else a, "float64"),
        (lambda a: (a, a) if type(a) is np.ndarray else a, "does not return"),
    ):  # fmt: skip
        with pytest.raises(TraceError, match=message):
            compared(function, X)
    graph, state = as_graph(np.exp, (X,)), np.random.get_state()[1].tolist()
    with pytest.raises(TraceError, match="twice"):
        caller_reference.compare(lambda a: np.exp(a) * np.random.rand(), (X,), graph)
    assert np.random.get_state()[1].tolist() == state


GENERATOR = np.random.default_rng(5)


@pytest.mark.filterwarnings("ignore:you are shuffling")
@pytest.mark.parametrize("seed", range(8))
def test_random_numbers_that_rarely_matter_are_found(seed):
    """Two calls are equal for one half of the draws, or two thirds."""

    def shuffled(a):
        a = a[:2].copy()
        np.random.shuffle(a)
        return a

    def own_generator(a):
        return a[0] if GENERATOR.integers(3) else a[1]

    for function in (shuffled, own_generator, lambda a: a[0] if random.randrange(3) else a[1]):
        with pytest.raises(TraceError, match="twice"):
            caller_reference.compare(function, (X,), as_graph(function, (X,)), seed=seed)

    def seeded(a):
        np.random.seed(0)
        return a * np.random.rand()

    for function in (seeded, lambda a: a * (1 if np.random.rand() > 2 else 2)):
        assert "3 inputs" in caller_reference.compare(function, (X,), as_graph(function, (X,)), seed=seed)


OWN_TORCH = torch.Generator().manual_seed(3)


class Noisy(torch.nn.Module):
    """Draws from a generator of its own submodule."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Identity()
        self.inner.numbers = np.random.default_rng(7)

    def forward(self, a):
        return a if self.inner.numbers.integers(8) else -a


@pytest.mark.parametrize("seed", range(2))
def test_random_numbers_in_torch_functions_and_modules_are_found(seed, monkeypatch):
    """Few calls differ: of one in eight to one in fifty draws."""
    # the operating system's numbers are the same in each run, and a busy machine makes as many calls as an idle one
    monkeypatch.setattr(random, "_urandom", np.random.default_rng(seed).bytes)
    monkeypatch.setattr("tensor_graphs.pipeline.trace_checks.trace_randomness.CHEAP_S", 60.0)
    numbers = np.random.default_rng(seed)
    functions = {
        "python": lambda a: a if random.randrange(10) else -a,
        "numpy": lambda a: a if np.random.randint(8) else -a,
        "closure": lambda a: a if numbers.integers(10) else -a,
        "item": lambda a: a if torch.rand(1) < 0.98 else -a,
        "own": lambda a: a if torch.rand(1, generator=OWN_TORCH).item() < 0.98 else -a,
        "random_": lambda a: a * torch.empty(1).random_(0, 2),
        "system": lambda a: a if random.SystemRandom().randrange(4) else -a,
        "dropout": lambda a: torch.nn.functional.dropout(a, 0.01),
        "normal_": lambda a: a + torch.empty_like(a).normal_(),
        "randperm": lambda a: a[torch.randperm(3)],
        "multinomial": lambda a: a[torch.multinomial(torch.ones(3), 2)],
        "module": Noisy(),
    }
    x = torch.from_numpy(X)
    torch.manual_seed(seed)
    for name, function in functions.items():
        with pytest.raises((TraceError, UnsupportedError, ExportError)):
            caller_reference.compare(function, (x,), as_graph(function, (x,)), seed=seed)
            pytest.fail(name)


def test_torch_random_states_are_kept_and_draws_without_effect_allowed():
    x = torch.from_numpy(X)

    def unused(a):
        return a * (1 if random.random() < 2 and torch.rand(3).numel() else 2)

    graph, state = as_graph(unused, (x,)), (torch.get_rng_state(), random.getstate())
    assert "itself" in caller_reference.compare(unused, (x,), graph)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert "itself" in compared(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.ReLU()).eval(), x)


class Counting(torch.nn.Module):
    """A cache, and a counter in Python, which a program would have as a constant."""

    def __init__(self, counts):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, 4))
        self.calls, self.counts = 0, counts

    def forward(self, a):
        self.calls += self.counts
        self.cache.mul_(0.5).add_(a)
        return self.cache * (1 + self.calls), 3


def test_modules_with_state_are_compared_in_calls_of_a_copy():
    module = Counting(0).eval()
    graph = as_graph(module, (torch.from_numpy(X),))
    text = caller_reference.compare(module, (torch.from_numpy(X),), graph)
    assert text == "compared with the module itself, in 2 calls on its examples"
    assert not module.cache.any()
    module = Counting(1).eval()
    with pytest.raises(TraceError, match="differs from that of its graph"):
        caller_reference.compare(module, (torch.from_numpy(X),), as_graph(module, (torch.from_numpy(X),)))


def test_graphs_of_modules_on_a_gpu_run_there_and_not_on_the_host(monkeypatch):
    """Torch's CPU stands for the GPU; NumPy takes minutes for large modules in half precision."""
    monkeypatch.setattr(trace_check_torch.ExampleCall, "device", "cpu")
    monkeypatch.setattr(trace_check_torch, "evaluate", None)
    given, half = (torch.from_numpy(X),), (torch.from_numpy(X).half(),)
    linear = torch.nn.Linear(4, 3).half()
    for module, x in ((linear, half), (Counting(0), given)):
        assert "module itself" in caller_reference.compare(module.eval(), x, as_graph(module.eval(), x))
    with pytest.raises(TraceError, match="differs"):
        caller_reference.compare(linear, half, as_graph(torch.nn.Sequential(linear, torch.nn.ReLU()).eval(), half))


def test_large_modules_are_compared_if_time_suffices(monkeypatch):
    monkeypatch.setattr(trace_check_torch, "MODULE_FLOPS", 10)

    class Noisy(torch.nn.Module):
        def forward(self, a):
            return a @ a.T + random.random()

    module, examples = Noisy().eval(), (torch.from_numpy(X),)
    graph = as_graph(module, examples)
    with pytest.raises(TraceError, match="called twice"):
        caller_reference.compare(module, examples, graph)
    monkeypatch.setattr(trace_randomness, "LEAST_S", 0.0)
    text = caller_reference.compare(module, examples, graph, spare=lambda: 0.0)
    assert text.startswith("compared with its graph only: the module is large; left out for lack of time")


SCALE = 2.0


def _hours():
    from datetime import datetime as date

    return date.now().hour


class Dated(torch.nn.Module):
    def forward(self, a):
        return a * (1 + (lambda: time.localtime().tm_year)())


@pytest.mark.parametrize(("function", "read"), [
    (lambda a: a * time.time(), "time.time()"), (lambda a: a + _hours(), "datetime.now()"), (Dated().eval(), "time.localtime()"),
    (lambda a: a * float(os.getenv("SCALE", "2")), "os.environ"), (functools.partial(lambda k, a: a * k * len(os.environ), 2), "os.environ"),
    (lambda a: a * sum(map(len, open(__file__))), "a file"),  # noqa: SIM115
])  # fmt: skip
def test_functions_that_read_outside_values_get_a_warning(function, read):
    """Two calls agree where the value changes rarely: the program has that of the trace for ever."""
    x = torch.from_numpy(X) if isinstance(function, torch.nn.Module) else X
    program = tg.optimize(function, (x,), budget=1, effort=0, measure=False, backend="numpy")
    assert [w for w in program.report.warnings if f"reads {read}:" in w]


def test_functions_that_read_nothing_get_no_warning():
    for function in (
        lambda a: a * SCALE,
        np.tanh,
        torch.nn.Linear(2, 2),
        lambda a: logging.info("called") or a,
        object(),
        len,
    ):
        assert not outside_reads(function)


def test_functions_without_a_module_and_objects_with_odd_attributes_are_looked_at():
    known = {}
    exec("import time\ndef read(x):\n    return x + time.time()\n", known)
    known["read"].__module__ = None
    assert outside_reads(known["read"]) == ["time.time()"]

    class Odd:
        def modules(self, depth):
            raise RuntimeError(depth)

        def __call__(self, x):
            return x

    assert outside_reads(Odd()) == []


@pytest.mark.filterwarnings("ignore:you are shuffling")
def test_random_numbers_in_large_functions_are_found(monkeypatch):
    monkeypatch.setattr(trace_check_large, "LARGE_BYTES", 8)

    def shuffled(a):
        a = a.copy()
        np.random.shuffle(a)
        return a

    np.random.seed(1)  # the graph of a swap mixes all indices, and has no strips
    with pytest.raises(TraceError):
        compared(shuffled, X[:2].copy())
    random.seed(0)
    with pytest.raises(TraceError, match="called again"):
        compared(lambda a: a * (1 if random.random() < 0.5 else 2), X)  # the first draws: 0.84, 0.76, 0.42, 0.26, 0.51
    harmless = lambda a: a * (1 if random.random() < 2 else 2)
    assert "on one input" in (message := compared(harmless, X)) and "left out" not in message
    monkeypatch.setattr(trace_randomness, "LEAST_S", 0)
    message = caller_reference.compare(harmless, (X,), as_graph(harmless, (X,)), spare=lambda: 0.0)
    assert "left out for lack of time: more calls" in message


def test_functions_that_raise_for_their_examples():
    def fussy(a):
        if type(a) is np.ndarray and a.dtype == np.float32:
            raise KeyError("no")
        return a * 2

    with pytest.raises(TraceError, match="KeyError"):
        compared(fussy, X)


def test_functions_of_this_package_have_their_graph_only():
    assert "compared with its graph only: the function calls tg.softmax" in compared(lambda a: tg.softmax(a) * 2, X)


def test_a_graph_of_another_function_is_refused_by_optimize(monkeypatch):
    program = tg.optimize(lambda a: a * 2, (X,), measure=False, effort=0, backend="numpy")
    assert program.report.verification["caller"] == "compared with the function itself, on 3 inputs"
    with pytest.raises(TraceError, match="twice"):
        tg.optimize(lambda a: a * np.random.rand(), (X,), measure=False, effort=0, backend="numpy")


def test_modules_are_run_on_their_examples():
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()).eval(), torch.randn(2, 4)
    graph = as_graph(module, (x,))
    assert caller_reference.compare(module, (x,), graph) == "compared with the module itself, on its examples"
    wrong = graph.with_roots([graph.outputs[0] * 1.1])
    with pytest.raises(TraceError, match="the function gives"):
        caller_reference.compare(module, (x,), wrong)
    assert "itself" in caller_reference.compare(module.train(), (x,), graph)
    counting = torch.nn.BatchNorm1d(4)
    assert "itself, in 2 calls" in caller_reference.compare(counting, (x,), as_graph(counting, (x,)))
    assert "itself" in caller_reference.compare(lambda v: v @ v.T, (x,), as_graph(lambda v: v @ v.T, (x,)))


@pytest.mark.parametrize("training", [False, True])
def test_a_module_that_counts_its_calls_is_refused(training):
    torch = pytest.importorskip("torch")

    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    with pytest.raises(TraceError, match="called twice"):
        tg.optimize(Counting().train(training), (torch.ones(3),), budget=0, backend="numpy", measure=False)


def test_expressions_and_files_have_no_caller():
    x = tg.input("x", (2,))
    assert (
        caller_reference.compare(x + 1, None, Graph.of(x + 1)) == ""
        and caller_reference.compare("model.onnx", None, Graph.of(x)) == ""
    )
    assert dataclasses.is_dataclass(Graph)


def test_differences_that_rounding_decides_are_accepted():
    def centred(a):
        rows = np.broadcast_to(a[:, :1], (3, 40))
        return rows - rows.mean(1, keepdims=True), np.argmax(rows * np.float32(0.1) * 3 - rows * np.float32(0.3), 1)

    graph, zero = as_graph(centred, (X,)), np.zeros((3, 40), np.float32)
    rounding = Rounding(with_atomic_ops(graph), {"a": X}, [zero, zero], [zero, zero])
    assert rounding.explains(0, zero + np.float32(2e-7)) and not rounding.explains(0, zero + np.float32(1e-3))
    assert "itself, on 3 inputs" in compared(centred, X)


def test_an_infinity_is_no_rounding_of_another_value():
    """Neither alone nor where other elements are at their limits."""
    for value, other in ((np.inf, 3.0), (-np.inf, np.inf), (np.nan, np.inf), (np.inf, np.nan)):
        wrong = lambda a, v=value, w=other: a * 0 + (np.float32(v) if type(a) is np.ndarray else np.float32(w))
        with pytest.raises(TraceError, match="differs from that of its graph"):
            compared(wrong, X)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, narrow: x + 1 if narrow else x - 1,
        lambda x, narrow: np.floor(x).astype(int) + (1 if narrow else 0),
        lambda x, narrow: (x > 0) ^ (not narrow),
        lambda x, narrow: x[0] + 1 if narrow else x[0],
        lambda x, narrow: np.where(np.arange(4) == 3, 9, x) if narrow else x,
        lambda x, narrow: x * (1.1 if narrow else 1),
        lambda x, narrow: np.exp(x).sum(1) * (1 if narrow else 0.9),
    ],
)
def test_agreement_in_float64_excuses_no_other_value_in_the_function_s_own_dtype(function, dtype):
    """Decided by the type of an element, which is float64 in the comparison in float64, and another one in a trace."""
    with pytest.raises(TraceError, match="differs from that of its graph"):
        compared(
            lambda x: function(x, type(x.flat[0] if type(x) is np.ndarray else x) is np.dtype(dtype).type),
            X.astype(dtype),
        )


@pytest.mark.parametrize("function", [
    lambda x: x, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), lambda x: np.tanh(x @ x.T), lambda x: x.cumsum(1),
    lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
])  # fmt: skip
def test_a_small_factor_in_the_function_s_own_dtype_is_no_rounding(function):
    """0.1 % in float32 only: more than rounding explains, although both agree in float64."""
    wrong = lambda x: function(x) * np.float32(1.001 if type(x) is np.ndarray and x.dtype == np.float32 else 1)
    assert "itself, on 3 inputs" in compared(function, X)
    with pytest.raises(TraceError, match="differs from that of its graph"):
        compared(wrong, X)


def test_another_order_of_sums_is_rounding():
    """One term after the other, in the function's own dtype: off by much more than NumPy's pairwise sums."""
    x = np.full((1, 1 << 16), 0.1, np.float32)
    assert "itself, on 3 inputs" in compared(lambda a: np.einsum("ij->i", a), x)
    assert "itself, on 3 inputs" in compared(
        lambda a: np.cumsum(a, axis=1)[:, -1] if type(a) is np.ndarray else a.sum(1), x
    )


@pytest.mark.parametrize("function", [
    lambda x: x.mean(), lambda x: x.std(0), lambda x: np.convolve(x[0] * 300, x[1] * 300), lambda x: (x * 300) @ (x.T * 300),
])  # fmt: skip
def test_sums_that_overflow_in_16_bits_agree(function):
    """NumPy takes means of float16 in float32; in which order sums overflow is undefined."""
    x = (300 + np.random.default_rng(0).standard_normal((256, 64))).astype(np.float16)
    assert "itself, on 3 inputs" in compared(function, x)


@pytest.mark.parametrize(
    ("function", "agrees"), [(lambda x: (x * 1e38).sum(1), True), (lambda x: x[:, 0] * 1e39, False)]
)
def test_sums_beyond_their_dtype_may_be_nan(function, agrees):
    """Where parts of a sum are infinities of both signs, which depends on its order; no other value becomes NaN."""
    graph, low = as_graph(function, (X,)), np.full(len(X), -np.inf, np.float32)
    rounding = Rounding(with_atomic_ops(graph), {"x": X}, [low], [low])
    assert rounding.explains(0, low) and rounding.explains(0, low * np.nan) == agrees
    assert not rounding.explains(0, np.zeros_like(low))


@pytest.mark.parametrize("factor", [1.5, 1.001])
def test_torch_functions_that_scale_another_layout_are_refused(factor):
    with pytest.raises(TraceError, match="differs from that of its graph"):
        tg.optimize(lambda x: x * (1 if x.is_contiguous() else factor), (torch.ones(3, 4),), budget=0, measure=False)


@pytest.mark.parametrize("function", [lambda x: x.stride(0) + x, lambda x: x * 2 if x.is_contiguous() else x * 3])
def test_torch_functions_that_depend_on_the_memory_layout_are_refused(function):
    """torch.export has the strides of the examples; a program takes tensors of every layout."""
    with pytest.raises(TraceError, match="differs from that of its graph"):
        tg.optimize(function, (torch.ones(3, 4),), budget=0, measure=False)


def test_functions_that_accept_one_layout_only_are_compared_in_that():
    program = tg.optimize(lambda x: x.view(-1) + 1, (torch.ones(3, 4),), budget=0, measure=False)
    assert "on its examples" in program.report.verification["caller"]


def test_torch_functions_that_raise_for_their_examples_are_refused():
    with pytest.raises(TraceError, match="with the example inputs it raises RuntimeError"):
        tg.optimize(lambda x: torch.pow(x, -1), (torch.ones(3, 4, dtype=torch.int32),), budget=0, measure=False)


@pytest.mark.parametrize("function", [
    lambda a: a.reshape(2, 3, 4, 2)[::-1].transpose(2, 0, 3, 1).reshape(a.shape), lambda a: np.cumsum(a) / a.size,
    lambda a: torch.flip(a.reshape(2, 3, 4, 2), (0,)).permute(2, 0, 3, 1).reshape(a.shape),
], ids=["shuffle", "running sum", "torch"])  # fmt: skip
def test_large_outputs_that_mix_all_indices_are_compared_as_a_whole(function, monkeypatch):
    """They have no strips; shuffles are compared bit by bit, others in float64, if the time suffices."""
    monkeypatch.setattr(trace_check_large, "LARGE_BYTES", 8)
    x = torch.arange(48.0).reshape(6, 8) if "torch" in function.__code__.co_names else np.arange(48.0).reshape(6, 8)
    graph = as_graph(function, (x,))
    assert "itself, on one input, 100 %" in caller_reference.compare(function, (x,), graph)
    other = as_graph(lambda a: function(a) * 1.01, (x,))
    with pytest.raises(TraceError, match="differs from that of its graph"):
        caller_reference.compare(function, (x,), other)
    monkeypatch.setattr(trace_randomness, "LEAST_S", 0)
    if isinstance(x, np.ndarray):
        message = caller_reference.compare(function, (x,), graph, spare=lambda: 0.0)
        assert message.startswith("compared with its graph only") and message.endswith("lack of time: the comparison")
