"""Threads of C kernels: equal results, other numbers of threads, several callers, forked children, what a process
shares."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.c import backend as c
from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.program.emit.joined_calls import JoinedCalls
from tensor_graphs.backends.program.helpers.c_threads import SHARED
from tensor_graphs.backends.program.helpers.cpu_helpers import HELPERS, library_text
from tensor_graphs.backends.program.launch import emission

from ...only_in import only_in

pytestmark = pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")

ROWS, LENGTH = 37, 3000
SUMS = f"""void NAME(const float *restrict x, float *restrict out)
{{
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < {ROWS}; i++) {{
        float sum = 0.0f;
        for (long j = 0; j < {LENGTH}; j++) sum += x[i * {LENGTH} + j];
        out[i] = sum;
    }}
}}"""
TEAM = "extern void omp_set_num_threads(int);\n"
COUNT = """void threads_of(int *restrict seen)
{
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < 64; i++) seen[i] = (int)syscall(SYS_gettid);
}
void set_threads(const int *n) { omp_set_num_threads(*n); }"""


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    """OpenMP's number of threads of the calling thread is what it was after a test: Dynamo compiles a graph once for
    each number of threads, and every thread has its own."""
    c_helpers.c_threads()  # loads the library if no other module has
    openmp = ctypes.CDLL(None)
    before = openmp.omp_get_max_threads()
    yield
    openmp.omp_set_num_threads(before)
    assert openmp.omp_get_max_threads() == before


def library(name: str = "sums", more: str = "") -> Any:
    text = library_text({name: SUMS.replace("NAME", name), "more": more}, own_threads=True)
    return c_helpers.c_library(text.split('r"""')[1].split('"""')[0])


def summed(function: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.full(ROWS, np.nan, np.float32)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data))
    return out


def given(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((ROWS, LENGTH), np.float32)


def want(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sums in the order of the kernel."""
    return np.add.accumulate(x, axis=1)[:, -1]


def team(made: Any, threads: int) -> set[int]:
    """The threads that compute a region; the calling thread's number of threads stays what it was."""
    before, seen = ctypes.CDLL(None).omp_get_max_threads(), np.zeros(64, np.int32)
    made.set_threads(ctypes.byref(ctypes.c_int(threads)))
    try:
        found: set[int] = set()
        for _ in range(50):
            made.threads_of(ctypes.c_void_p(seen.ctypes.data))
            assert seen.all()
            found |= {*seen.tolist()}
        return found
    finally:
        made.set_threads(ctypes.byref(ctypes.c_int(before)))


def test_regions_compute_every_part_once_for_any_number_of_threads() -> None:
    made, x = library(more=TEAM + COUNT), given()
    wanted = want(x)
    for threads in (1, 2, 5, 3):
        made.set_threads(ctypes.byref(ctypes.c_int(threads)))
        for _ in range(300):
            np.testing.assert_array_equal(summed(made.sums, x), wanted)
    assert len(team(made, 1)) == 1 and 1 <= len(team(made, 3)) <= 3


def test_callers_in_several_threads_do_not_wait_for_one_another() -> None:
    made, wrong = library(), []

    def calls(seed: int) -> None:
        x = given(seed)
        wanted = want(x)
        wrong.extend(i for i in range(200) if not np.array_equal(summed(made.sums, x), wanted))

    callers = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(300)
    assert not wrong and not any(one.is_alive() for one in callers)


def test_a_forked_child_has_threads_of_its_own() -> None:
    """Also where another thread of its parent computes a region at the time of the fork."""
    made, x = library(more=TEAM + COUNT), given()
    wanted, stop = want(x), threading.Event()
    assert team(made, 3)
    made.set_threads(ctypes.byref(ctypes.c_int(3)))

    def busy() -> None:
        while not stop.is_set():
            summed(made.sums, x)

    other = threading.Thread(target=busy)
    other.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                os._exit(0 if all(np.array_equal(summed(made.sums, x), wanted) for _ in range(50)) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        other.join(300)


def test_libraries_share_the_threads_of_the_first_one() -> None:
    first, second = library("first_sums"), library("second_sums")
    everything = ctypes.CDLL(None)
    shared = ctypes.cast(getattr(everything, SHARED), ctypes.c_void_p).value
    assert shared is not None
    x = given()
    np.testing.assert_array_equal(summed(first.first_sums, x), summed(second.second_sums, x))
    tasks = lambda: set(os.listdir("/proc/self/task"))
    before = tasks()
    third = library("third_sums")
    summed(third.third_sums, x)
    assert not tasks() - before  # threads of earlier tests may end meanwhile


def test_all_libraries_but_the_first_one_are_unloaded_with_their_program() -> None:
    """Each one stayed mapped, and in the list of libraries in which the loader looks up every symbol."""
    library()  # whose threads the others use, unless an earlier test has loaded one
    for name in ("closed_sums", "ended_sums"):
        space: dict[str, Any] = {"kernels": library(name)}
        x, path = given(), os.path.realpath(space["kernels"]._name)
        np.testing.assert_array_equal(summed(getattr(space["kernels"], name), x), want(x))
        assert path in Path("/proc/self/maps").read_text()
        assert emission.dlclose is not None
        emission.dlclose(space.pop("kernels")._handle)  # as at the end of a program (`emission.executed`)
        assert path not in Path("/proc/self/maps").read_text()


def test_a_library_stays_loaded_if_another_one_exports_its_threads_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader has bound it to its own threads then; it was unloaded while they ran in it."""
    opened: list[tuple[Any, ...]] = []

    def opens(*given: Any) -> Any:
        opened.append(given)
        others = given == (None,) and not [path for path, *_ in opened if path]
        return SimpleNamespace() if others else SimpleNamespace(**{SHARED: 1})

    only_in(monkeypatch, c_helpers, "ctypes", CDLL=opens)
    c_helpers.c_opened(Path("first.so"))
    assert opened[-1] == ("first.so", ctypes.RTLD_GLOBAL)
    c_helpers.c_opened(Path("second.so"))
    assert opened[-1] == ("second.so",)


def test_a_process_ends_while_its_threads_look_for_work(tmp_path: Path) -> None:
    text = library_text({"sums": SUMS.replace("NAME", "sums")}, own_threads=True).split('r"""')[1].split('"""')[0]
    (tmp_path / "run.py").write_text(
        f"""import ctypes, numpy as np
from tensor_graphs.backends.c.helpers import c_library
made = c_library({text!r})
x, out = np.ones(({ROWS}, {LENGTH}), np.float32), np.empty({ROWS}, np.float32)
for _ in range(100):
    made.sums(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data))
print(out.sum())
"""
    )
    known = {**os.environ, "OMP_NUM_THREADS": "4", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, env=known, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and float(done.stdout) == ROWS * LENGTH, done.stderr


def test_consecutive_calls_are_one_function() -> None:
    """Three calls and comments between other lines, behind what makes their arrays; a single call at fixed addresses
    and one with an object of ctypes stay."""
    calls = {
        "double_()": "twice(x_a, y_a)", "double_2()": "twice(y_a, z_a)", "double_3()": "twice(z_a, x_a)",
        "sum_()": "sum(x_a, ctypes.c_long(3))",
    }  # fmt: skip
    functions = {
        name: f"void {name}(const float *restrict x, float *restrict y)\n{{\n    *y = 2 * *x;\n}}"
        for name in ("twice", "sum")
    }
    names: dict[str, int] = {}

    def named(base: str) -> str:
        names[base] = names.get(base, 0) + 1
        return base if names[base] == 1 else f"{base}_{names[base]}"

    join = JoinedCalls(calls, {"y_a = argument(y)", "y = np.empty(1)"}, functions, (), named)
    lines = [
        "# first",
        "double_()",
        "# second */",
        "y = np.empty(1)",
        "y_a = argument(y)",
        "double_2()",
        "double_()",
        "# third",
        "np.add(a, b)",
        "sum_()",
        "twice(y_a, 3)",
        "del y, y_a",
        "double_3()",
    ]
    assert join.joined(lines) == [
        "y = np.empty(1)", "at[0] = start_of(y)", "steps_()", "# third", "np.add(a, b)", "sum_()", "steps_2_()",
        "del y", "double_3()",
    ]  # fmt: skip
    assert join.once == ["at = table(None, x_a, z_a)", "steps_ = partial(steps, at)", "steps_2_ = partial(steps_2, at)"]
    assert "twice(at[0], 3)" in functions["steps_2"] and "/* second * / */" in functions["steps"]
    text = library_text(functions, own_threads=True).split('r"""')[1].split('"""')[0]
    x, y = np.float32([3]), np.float32([0])
    space: dict[str, Any] = {"ctypes": ctypes}
    exec(HELPERS["table"], space)
    z = np.float32([0])
    at = space["table"](None, (ctypes.c_float * 0).from_buffer(x), ctypes.c_void_p(z.ctypes.data))
    at[0] = y.ctypes.data
    c_helpers.c_library(text).steps(at)
    assert (x[0], y[0], z[0]) == (3.0, 6.0, 12.0)
