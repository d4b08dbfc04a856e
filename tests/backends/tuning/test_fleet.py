"""Measuring on a real local Ray cluster: results, lost workers, bad jobs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.backends.registry import template
from tensor_graphs.backends.tuning import fleet, jobs
from tensor_graphs.backends.tuning.fleet import measure_on_fleet
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import DeviceUnavailableError
from tensor_graphs.extract.model.kernel import Call, Operand


def job(rows: int) -> jobs.Job:
    """A job of a NumPy kernel."""
    x = Operand(Type((rows, 64), "float32"), (64, 1))
    return jobs.job_of(template("numpy", "np.add"), Call({"x": x, "y": x}, x, {}))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the fleet extra is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(p for p in (str(Path(tg.__file__).parents[1]), os.environ.get("PYTHONPATH", "")) if p),
    )


def kill_workers() -> None:
    """Kill the workers among the processes that this one has started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        with suppress(OSError):
            if above and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::FleetWorker"):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_jobs_are_measured_and_a_lost_worker_costs_at_most_its_job(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = [job(n) for n in (8, 16, 32, 64)]
    killed: list[str] = []

    def say(message: str) -> None:
        if not killed:
            killed.append(message)
            kill_workers()

    found = measure_on_fleet([*todo, "not JSON", {**todo[0], "identity": "x"}], tmp_path / "shards", say=say)
    assert (found.measured, found.lost, found.known) == (4, 0, 0) and set(found.bad) == {4, 5}
    assert (found.actors, found.died) == (2, 1)
    assert found.rows["timing"] >= 4
    store = Store(tmp_path / "store")
    assert not store.merge(tmp_path / "shards").bad_shards
    monkeypatch.setitem(sys.modules, "ray", Ray())  # nothing is left to measure: another cluster would only start
    again = measure_on_fleet(todo, tmp_path / "shards", device="cpu")
    assert (again.measured, again.known) == (0, 4)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, cluster: None) -> None:
    with pytest.raises(DeviceUnavailableError, match="cannot be reached"):
        measure_on_fleet([job(8)], tmp_path, address="127.0.0.1:1")


class Ray:
    """A stand-in for the module ray whose actors are local: they run jobs when their reply is awaited."""

    def __init__(self, address: str = "") -> None:
        self.address, self.calls = address, list[Any]()
        failed = type("RayError", (Exception,), {})
        self.exceptions = SimpleNamespace(RayError=failed, RayTaskError=type("RayTaskError", (failed,), {}))

    def init(self, **options: Any) -> None:
        self.calls.append(options["address"])
        self.address = "new"

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        self.address = ""

    def is_initialized(self) -> bool:
        return bool(self.address)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.address)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True}]

    def remote(self, kind: Any) -> Any:
        def made(*args: Any) -> Any:
            worker = kind(*args)
            return SimpleNamespace(measure=SimpleNamespace(remote=lambda job: FakeReply(lambda: worker.measure(job))))

        return SimpleNamespace(options=lambda **given: SimpleNamespace(remote=made))

    def wait(self, replies: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        return replies[:1], replies[1:]

    def get(self, reply: Any, timeout: float) -> Any:
        try:
            return reply.run()
        except Exception as error:
            raise self.exceptions.RayTaskError(f"Traceback:\n{type(error).__name__}: {error}") from error


@dataclass(eq=False)
class FakeReply:
    run: Callable[[], Any]


@pytest.mark.parametrize(("address", "kept"), [("", False), ("10.0.0.7:6379", True)])
def test_a_connection_of_the_caller_is_used_and_kept(
    address: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(address)
    monkeypatch.setitem(sys.modules, "ray", ray)
    found = measure_on_fleet([job(8)], tmp_path, device="cpu")
    assert found.measured == 1 and not found.bad
    assert ray.calls == ([] if kept else ["local", "shutdown"]) and ray.is_initialized() is kept
    if kept:
        with pytest.raises(DeviceUnavailableError, match=r"connected to the Ray cluster 10\.0\.0\.7"):
            measure_on_fleet([job(16)], tmp_path, device="cpu", address="10.0.0.8:6379")


def test_a_job_that_raises_costs_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Ray())
    measure, calls = fleet.LocalMeasurers.measure, list[Any]()

    def fails(self: Any, jobs: Any) -> Any:
        calls.append(jobs)
        if len(calls) == 2:
            raise OSError("no space left")
        return measure(self, jobs)

    monkeypatch.setattr(fleet.LocalMeasurers, "measure", fails)
    found = measure_on_fleet([job(8), job(16), job(32)], tmp_path, device="cpu")
    assert (found.measured, found.died, found.lost) == (2, 0, 0)
    assert list(found.bad.values()) == ["the worker raised OSError: no space left"]
