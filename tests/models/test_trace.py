"""Functions of our own tensors become graphs."""

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import ExportError, ShapeError, TraceError, UsageError
from tensor_graphs.models.functions.trace import trace
from tensor_graphs.pipeline.sources.source import as_graph

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_inputs_take_the_names_and_types_of_the_arguments():
    graph = trace(lambda a, weight: a @ weight, [X, ((3, 4), "float32")])
    assert [(n.attr("name"), n.type) for n in graph.inputs] == [
        ("a", Type((2, 3), "float32")), ("weight", Type((3, 4), "float32"))]  # fmt: skip
    assert graph.structure is None and graph.names == ("output",)
    (out,) = evaluate(graph, {"a": X, "weight": np.ones((3, 4), np.float32)})
    np.testing.assert_array_equal(out, X @ np.ones((3, 4), np.float32))


def test_nested_results_keep_their_structure():
    def f(x):
        return {"sum": x + 1, "rest": (x * 2, None, [x])}

    graph = trace(f, [X])
    assert graph.structure == {"sum": 0, "rest": (1, None, [2])}
    assert graph.names == ("sum", "rest.0", "rest.2.0") and graph.name == "f"
    for found, wanted in zip(evaluate(graph, {"x": X}), (X + 1, X * 2, X), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_variadic_named_and_plain_arguments():
    def f(*xs, power, flag=True):
        return t.pow(xs[0] + xs[1], power) if flag else xs[0]

    graph = trace(f, [X, X], example_kwargs={"power": 2, "flag": True})
    assert [n.attr("name") for n in graph.inputs] == ["xs0", "xs1"]
    np.testing.assert_allclose(evaluate(graph, {"xs0": X, "xs1": X})[0], (2 * X) ** 2)


def test_free_sizes_stay_free():
    n = t.dim("n")
    graph = trace(lambda x: t.sum(x, 1), [((n, 3), "float32")])
    assert list(graph.free_dims) == ["n"] and graph.outputs[0].shape == (n,)
    assert graph.bind({"n": 2}).outputs[0].shape == (2,)


@pytest.mark.parametrize("decide", [
    lambda n: n % 2 == 0, lambda n: n % 2, lambda n: n == 7, lambda n: n in (1, 2), lambda n: n > 8, lambda n: {1: 2}.get(n), lambda n: n < 2.5,
    lambda n: (n, 3) == (1, 3), lambda n: min(n, 4), range, int, float, lambda n: n**2, lambda n: 1 / n, np.arange, np.ones,
])  # fmt: skip
def test_a_free_size_decides_nothing(decide):
    """What holds at one size was traced for all sizes."""
    with pytest.raises(TraceError, match="free size"):
        trace(lambda x: x * 2 if decide(x.shape[0]) else x, [((t.dim("n", max=64), 3), "float32")])


def test_what_holds_for_every_free_size_is_decided():
    n = t.dim("n", min=2, max=64)
    seen = []

    def f(x):
        rows = x.shape[0]
        seen.append(
            (
                rows > 1,
                rows == 1,
                rows != 65,
                2 * rows - rows == rows,
                x.shape == x.copy().shape,
                bool(rows),
                rows == "a",
            )
        )
        return np.reshape(x[1 : rows - 1 : 1], (-1, 1)).reshape(3, rows - 2)

    graph = trace(f, [((n, 3), "float32")])
    assert seen == [(True, False, True, True, True, True, False)]
    assert graph.bind({"n": 5}).outputs[0].shape == (3, 3)
    with pytest.raises(TraceError, match="free size"):  # the parity decides which element is the median
        trace(lambda x: np.median(x, axis=0), [((n, 3), "float32")])
    with pytest.raises(ShapeError, match="0 is not the same"):
        bool(n % 2)


@pytest.mark.parametrize(
    ("function", "examples"),
    [(lambda x: None, [X]), (lambda x: "no", [X]), (lambda x: x, [X, X]), (lambda x: x, [object()])],
)
def test_what_is_no_tensor_function_is_refused(function, examples):
    with pytest.raises(UsageError):
        trace(function, examples)


def test_errors_name_the_line_and_what_to_write_instead():
    x = np.ones((2, 2), np.float32)

    def joined(a):
        return np.array([[a[1, 1], -a[0, 1]], [-a[1, 0], a[0, 0]]])

    cases = ((joined, "np.stack"), (lambda a: np.asarray(a), "np.stack"), (lambda a: a * float(a[0, 0]), "float"),
             (lambda a: sorted(a[0]), "np.sort"), (lambda a: a if a.sum() > 0 else -a, "np.where"),
             (lambda a: np.linalg.svd(a), "other functions"), (lambda a: None, ""))  # fmt: skip
    for function, hint in cases:
        with pytest.raises(TraceError) as refused:
            trace(function, [x])
        first = function.__code__.co_firstlineno
        file, _, line = refused.value.where.rpartition(":")
        assert hint in refused.value.hint and file == __file__ and first <= int(line) <= first + 1


def test_inputs_from_elsewhere_are_refused():
    other = t.input("other", (2, 3))
    with pytest.raises(UsageError, match="other"):
        trace(lambda x: x + other, [X])


def test_bools_are_counted():
    (out, total, running) = evaluate(
        trace(lambda x: (tg.sum(x > 2, 1), tg.prod(x > 2), tg.cumsum(x > 2, 1)), [X]), {"x": X}
    )
    assert (out.tolist(), int(total), running.tolist()) == ([0, 3], 0, [[0, 0, 0], [1, 2, 3]])
    assert {out.dtype, total.dtype, running.dtype} == {np.dtype("int64")}


def test_equality_compares_elements():
    y = X[:, ::-1]
    (found,) = evaluate(trace(lambda x: x == y, [X]), {"x": X})
    np.testing.assert_array_equal(found, y == X)
    a, b = t.input("a", (3,)), t.input("b", (3,))
    (equal, other) = evaluate([a == b, a != 1.0], {"a": X[0], "b": X[0, ::-1]})
    assert (equal.tolist(), other.tolist()) == ([False, True, False], [True, False, True])
    for condition in (lambda: bool(a == b), lambda: a in [b], lambda: 1.0 in a, lambda: 1 if a != b else 2):
        with pytest.raises(UsageError):
            condition()
    assert a in [a] and {a: 1}[a] == 1 and b not in {a}


def test_functions_of_torch_tensors_mean_what_they_mean_there():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 2.0]])

    def ours(x):
        return t.sum(t.exp(x), 1)

    def theirs(x):
        return (x > 0).sum(1), x == 0, x.max(1)[1], x.var(1)

    for function in (theirs, ours):
        found = evaluate(as_graph(function, (x,)), {"x": x.numpy()})
        wanted = function(x) if function is theirs else [x.exp().sum(1)]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-6)
            assert a.dtype == b.numpy().dtype
    graph = as_graph(theirs, (x,), dynamic_shapes={"x": {0: "rows"}})
    assert list(graph.free_dims) == ["rows"]
    with pytest.raises(ExportError, match="data-dependent"):
        as_graph(lambda x: x if x.sum() > 0 else -x, (x,))
    with pytest.raises(UsageError, match="truth value"):
        as_graph(lambda x: x if t.sum(x) > 0 else -x, (x,))
    with pytest.raises(UsageError, match="dynamic_shapes"):
        as_graph(ours, (X,), dynamic_shapes={"x": {0: "rows"}})
