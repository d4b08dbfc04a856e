"""Functions and modules that decide by errors which a trace does not have are refused."""

import builtins
import concurrent.futures
import contextlib
import io
import logging
import threading
import warnings

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings as tool_settings
from tensor_graphs.errors import ExportError, TooLargeError, TraceError, UsageError
from tensor_graphs.models.functions.trace import trace
from tensor_graphs.pipeline.sources.source import as_graph

X = np.arange(6, dtype=np.float32)


def by_truth(x):
    with contextlib.suppress(Exception):
        if x.max() > 1e6:
            return x / 1e6
    return x * 2


def by_number(x):
    try:
        largest = float(x.max())
    except Exception:
        largest = 1.0
    return x * 2 if largest < 1e6 else x


def by_list(x):
    try:
        values = x.tolist()
    except Exception:
        values = [1.0]
    return x * 2 if max(values) < 1e6 else x


def by_array(x):
    try:
        largest = np.asarray(x).max()
    except Exception:
        largest = 1.0
    return x * 2 if largest < 1e6 else x


def by_mask(x):
    with contextlib.suppress(Exception):
        x = x[np.abs(x) < 1e6]
    return x.sum()


def by_places(x):
    try:
        count = np.argwhere(x > 1e6).shape[0] + np.nonzero(x > 1e6)[0].size
    except Exception:
        count = 0
    return x + count


FUNCTIONS = [by_truth, by_number, by_list, by_array]


@pytest.mark.parametrize("function", [*FUNCTIONS, by_mask, by_places])
def test_numpy_functions(function):
    """The comparison with the function draws no values above a million."""
    with pytest.raises(TraceError, match="the function caught this error and went on"):
        as_graph(function, (X,))


@pytest.mark.parametrize("function", [by_truth, by_number, by_array])
def test_functions_of_expressions(function):
    with pytest.raises(UsageError, match="the function caught this error and went on"):
        trace(function, (X,), arrays=False)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_torch_functions_and_modules(function):
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, x):
            return function(x)

    for source in (function, Module().eval()):
        with pytest.raises(ExportError):
            as_graph(source, (torch.from_numpy(X),))


def printed(x):
    print(x, repr(x), f"a tensor: {x}", f"{x!r} and", ", ".join([str(v) for v in (x, x)]))
    logging.getLogger(__name__).info("given %s", x)
    if x.ndim > 5:
        raise ValueError(f"too many axes: {x}")
    assert x.ndim == 1, f"{x}"
    return x * 2


def by_repr(x):
    return x * 2 if "e+" in repr(x) else x


def by_format(x):
    message = f"given {x}"
    return x * 2 if "e+" in message else x


def by_length(x):
    return x * len(str(x))


def by_caught_text(x):
    with contextlib.suppress(Exception):
        return x * 2 if "e+" in str(x) else x
    return x


def by_printed_text(x):
    written = io.StringIO()
    print(x, file=written)
    return x * len(written.getvalue())


def by_list_text(x):
    return x * len(repr([x]))


TEXTS = [by_repr, by_format, by_length, by_caught_text, by_printed_text, by_list_text]


@pytest.mark.parametrize("function", TEXTS)
def test_functions_that_decide_by_texts(function):
    with pytest.raises(TraceError, match="might decide by it"):
        as_graph(function, (X,))
    torch = pytest.importorskip("torch")
    with pytest.raises(ExportError, match="might decide by it"):
        as_graph(function, (torch.from_numpy(X),))


def test_texts_without_source_are_refused():
    known = {}
    exec("def function(x):\n    text = str(x)\n    return x", known)
    with pytest.raises(TraceError, match="might decide by it"):
        as_graph(known["function"], (X,))


def print_on(*values, **options):
    """A replacement of `print`, as some libraries install one."""
    original_print(*values, **options)


original_print = print


@pytest.mark.parametrize("replaced", [False, True])
def test_texts_that_are_only_shown(capsys, monkeypatch, replaced):
    if replaced:
        monkeypatch.setattr(builtins, "print", print_on)
        with pytest.raises(TraceError, match="might decide by it"):
            as_graph(by_printed_text, (X,))
    as_graph(printed, (X,))
    assert capsys.readouterr().out.count("<traced array: float32[6]>") == 6
    torch = pytest.importorskip("torch")
    as_graph(printed, (torch.from_numpy(X),))
    assert capsys.readouterr().out.count("FakeTensor(") == 6


def raising(x):
    try:
        with np.errstate(over="raise"):
            return np.exp(x)
    except FloatingPointError:
        return np.full_like(x, -1)


def calling(x):
    seen = []
    with np.errstate(divide="call", call=lambda *what: seen.append(what)):
        y = 1 / x
    return y if not seen else y * 0


def warned(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.sqrt(x)
        except RuntimeWarning:
            return np.sqrt(-x)


@pytest.mark.parametrize("workers", ["new", "old"])
def test_errors_in_threads_of_the_function(workers):
    """Threads have neither the context of the trace, nor does an error in them end it."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    if workers == "old":
        pool.submit(int).result()

    def decided(function):
        def in_a_thread(x):
            threads = pool if workers == "old" else concurrent.futures.ThreadPoolExecutor(1)
            return threads.submit(function, x).result()

        return in_a_thread

    with pool:
        for function in (*FUNCTIONS, by_mask, by_places):
            with pytest.raises(TraceError, match="the function caught this error and went on"):
                as_graph(decided(function), (X,))
            torch = pytest.importorskip("torch")
            with pytest.raises(ExportError):
                as_graph(decided(function), (torch.from_numpy(X),))
        for function in (raising, calling):
            with pytest.raises(TraceError, match="floating-point errors"):
                as_graph(decided(function), (X,))
        if workers == "new":
            with pytest.raises(UsageError, match="the function caught this error and went on"):
                trace(decided(by_truth), (X,), arrays=False)
        assert as_graph(decided(lambda x: x + 1), (X,)).outputs[0].shape == (6,)


def test_another_thread_s_mistake_is_not_the_function_s():
    began, asked = threading.Event(), threading.Event()

    def mistake():
        began.wait(60)
        with pytest.raises(UsageError):
            bool(tg.input("y", (2,)))
        asked.set()

    def function(x):
        began.set()
        assert asked.wait(60)
        return x + 1

    thread = threading.Thread(target=mistake)
    thread.start()
    assert trace(function, (X,)).outputs[0].shape == (6,)
    thread.join()


def test_loops_in_threads_of_the_function_are_bounded():
    def endless(x):
        def run():
            y = x
            while True:
                y = y + 1

        return concurrent.futures.ThreadPoolExecutor(1).submit(run).result()

    with tool_settings.override(max_nodes=50), pytest.raises(TooLargeError, match="more than 50"):
        trace(endless, (X,))


@pytest.mark.parametrize("function", [raising, calling, warned])
def test_functions_that_make_floating_point_errors_raise(function):
    with pytest.raises(TraceError, match="floating-point errors"):
        trace(function, (X,))


def test_functions_that_silence_floating_point_errors_are_traced():
    def silent(x):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return 1 / x

    with np.errstate(over="raise"):  # the caller's own state
        assert trace(silent, (X,)).outputs[0].shape == (6,)


def test_errors_that_torch_catches_itself_are_no_matter():
    torch = pytest.importorskip("torch")
    graph = as_graph(lambda x: torch.nn.functional.layer_norm(x.reshape(2, 3), (3,)), (torch.from_numpy(X),))
    assert graph.outputs[0].shape == (2, 3)
    assert tg.optimize(lambda x: x + 1, (X,), budget=0, measure=False) is not None, "the next trace starts anew"
