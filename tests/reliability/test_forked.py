"""Workers that are forks of a kept server: each as a new process would be, and none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_graphs.backends.tuning.worker_process import CpuWorkerProcess
from tensor_graphs.processes import forked
from tensor_graphs.processes.forked import ForkedWorker, start_forked

from ..waiting import wait_for
from .test_workers import runs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

#: A worker that evaluates expressions, and the number of times that the server has prepared it.
WORKER = """
import json, os, subprocess, sys
state = []
prepare = lambda: state.append(os.getpid())
def main():
    for line in sys.stdin:
        print(json.dumps(eval(line)), flush=True)
"""


@pytest.fixture(autouse=True)
def own_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker's module, and no servers of other tests."""
    (tmp_path / "evaluating.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(forked, "_servers", {})
    yield
    forked.close_servers()


def started(common: dict[str, str] | None = None) -> ForkedWorker:
    found = start_forked("evaluating", "prepare", common or {}, {"TENSOR_GRAPHS_WORKER_MEMORY": "5"})
    assert found is not None
    return found


def said(worker: ForkedWorker, text: str) -> str:
    worker.stdin.write(text + "\n")
    worker.stdin.flush()
    return worker.stdout.readline().strip()


def test_a_worker_is_a_new_process_that_has_imported_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """Nothing that an earlier worker did is seen; variables, folder and mask are those of now."""
    first = started()
    assert said(first, "(state.append(1), len(state))[1]") == "2"
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", "elsewhere")
    monkeypatch.chdir(tmp_path)
    second = started()
    assert said(second, "len(state)") == "1" and said(first, "state[0]") == said(second, "os.getppid()")
    names = "[os.getenv(x) for x in ('TENSOR_GRAPHS_HOME', 'TENSOR_GRAPHS_WORKER_MEMORY')]"
    assert said(second, names) == '["elsewhere", "5"]' and said(first, names) == f'["{home}", "5"]'
    assert said(second, "os.getcwd()") == f'"{tmp_path}"' and int(said(second, "os.getpid()")) == second.pid
    assert said(second, "os.getsid(0) == os.getpid()") == "true"
    descriptors = "sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1]"  # the last one is that of listdir
    assert said(second, descriptors) == "[0, 1, 2]"
    old = os.umask(0o77)
    try:
        third, fourth = started(), started({"OMP_NUM_THREADS": "3"})
    finally:
        os.umask(old)
    assert said(third, "os.umask(0)") == str(0o77) and said(fourth, "os.environ['OMP_NUM_THREADS']") == '"3"'
    assert len({said(w, "os.getppid()") for w in (first, third, fourth)}) == 3
    assert len(forked._servers) <= max(forked.MOST, 1)
    for worker in (first, second, third, fourth):  # servers that are left to end have kept their forks
        assert worker.poll() is None
        worker.kill()
        assert worker.poll() == -signal.SIGKILL


@pytest.fixture
def children_unheard() -> Iterator[None]:
    """Processes started now begin with SIGCHLD blocked, as those of programs that wait for it with `signalfd` do."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


def test_exit_codes_are_told_and_processes_of_an_ended_worker_end(tmp_path: Path, children_unheard: None) -> None:
    (tmp_path / "evaluating.py").write_text(f"{WORKER}\nsubprocess.Popen(['true'])")  # a process that an import starts
    for end, code in (("os._exit(7)", 7), ("os.kill(os.getpid(), 11)", -11), ("", -signal.SIGKILL)):
        worker = started()
        child = int(said(worker, "subprocess.Popen(['sleep', '600']).pid"))
        pid = worker.pid
        assert runs(pid) and runs(child)
        if end:
            assert said(worker, end) == "" and worker.wait(60) == code
        else:
            worker.kill()
            assert worker.wait() == code
        wait_for(lambda: not runs(child) and not runs(pid))  # noqa: B023 (waited for here)


def test_a_server_ends_when_it_is_idle_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "IDLE_S", 0.02)
    for _ in range(3):
        worker = started()
        server = worker.server.process
        assert said(worker, "1") == "1"
        worker.kill()
        server.wait(60)
    assert server.returncode == 0


def test_workers_end_with_the_parent_of_their_server() -> None:
    code = (
        "import os; from tests.reliability.test_forked import said, started\n"
        "w = started(); child = os.fork()\n"
        "if not child:\n    w.kill(); os._exit(w.poll() != -9)\n"
        "assert os.waitpid(child, 0)[1] == 0 and said(w, '1') == '1'\n"  # a forked child has no worker to end
        "print(w.pid, w.server.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=False,
    )
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2
    wait_for(lambda: not any(map(runs, pids)))


def test_a_worker_that_is_not_wanted_any_more_never_begins(tmp_path: Path) -> None:
    """Its server imports libraries for seconds; nobody waits for that."""
    (tmp_path / "evaluating.py").write_text(
        f"import time\nwhile not __import__('os').path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n{WORKER}"
    )
    worker, next_one = started(), started()
    worker.kill()
    assert worker.poll() == -signal.SIGKILL and not worker.begun
    (tmp_path / "go").touch()
    assert said(next_one, "len(open(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read().split())") == "1"
    next_one.kill()


def test_a_module_that_cannot_be_imported_costs_no_more_than_in_a_process_of_its_own(tmp_path: Path) -> None:
    """A worker of its own tells its exit code; a server only ends."""
    (tmp_path / "evaluating.py").write_text("import os\nos._exit(5)")
    worker = CpuWorkerProcess("evaluating", prepare="prepare")
    reply = worker.ask({})
    assert (reply["status"], reply["message"]) == ("crash", "the measuring process ended with code 5")
    worker.close()


@pytest.mark.parametrize("reason", ["hung", "killed"])
def test_jobs_whose_server_fails_are_done_by_a_process_of_their_own(tmp_path: Path, reason: str) -> None:
    """It is no fault of the kernel, and neither ends nor closing waits for a server that hangs."""
    (tmp_path / "evaluating.py").write_text(
        "import json, os, signal, sys, time\n"
        f"def prepare():\n    {'time.sleep(600)' if reason == 'hung' else 'pass'}\n"
        "def main():\n    sys.stdin.readline(); os.kill(os.getppid(), 9); time.sleep(600)\n"  # in a fork of the server
        "if __name__ == '__main__':\n"
        "    for line in sys.stdin: print(json.dumps({'id': json.loads(line)['id'], 'ok': True}), flush=True)\n"
    )
    worker = CpuWorkerProcess("evaluating", timeout=60.0, prepare="prepare")
    worker.start()
    worker.close()
    if reason == "hung":
        worker.ask({}, timeout=0.1)
        assert not worker.prepare
    assert worker.ask({})["ok"]
    worker.close()


def test_a_crash_at_the_first_job_is_told_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "evaluating.py").write_text(
        f"import os, sys\ndef main():\n    sys.stdin.readline(); open({str(tmp_path / 'ran')!r}, 'a').write('x'); os._exit(9)\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    worker = CpuWorkerProcess("evaluating", prepare="prepare")
    assert worker.ask({})["message"] == "the measuring process ended with code 9"
    assert (tmp_path / "ran").read_text() == "x"
    worker.close()
