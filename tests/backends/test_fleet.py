"""Measuring on a real local Ray cluster: results, lost workers, bad jobs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.backends.registry import template
from tensor_graphs.backends.tuning import jobs
from tensor_graphs.backends.tuning.fleet import measure_on_fleet
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ir.ops import Type
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


@pytest.mark.slow
def test_jobs_are_measured_and_a_lost_worker_costs_at_most_its_job(tmp_path: Path, cluster: None) -> None:
    todo = [job(n) for n in (8, 16, 32, 64)]
    killed: list[str] = []

    def say(message: str) -> None:
        if not killed:
            killed.append(message)
            subprocess.run(["pkill", "-9", "-f", "ray::FleetWorker"], check=False)

    found = measure_on_fleet([*todo, "not JSON", {**todo[0], "identity": "x"}], tmp_path / "shards", say=say)
    assert (found.measured, found.lost, found.known) == (4, 0, 0) and set(found.bad) == {4, 5}
    assert (found.actors, found.died) == (2, 1)
    assert found.rows["timing"] >= 4
    store = Store(tmp_path / "store")
    assert not store.merge(tmp_path / "shards").bad_shards
    again = measure_on_fleet(todo, tmp_path / "shards")
    assert (again.measured, again.known) == (0, 4)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, cluster: None) -> None:
    with pytest.raises(DeviceUnavailableError, match="cannot be reached"):
        measure_on_fleet([job(8)], tmp_path, address="127.0.0.1:1")
