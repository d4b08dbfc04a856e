"""What a first call of `optimize` does not do: collect garbage during imports, import pandas for the cost store and the
backends of other devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensor_graphs.processes.run_worker import YOUNG
from tensor_graphs.processes.spawn import start_line_worker

CODE = """
import gc, sys, tensor_graphs as tg
collections = lambda: sum(g["collections"] for g in gc.get_stats())
before = collections()
tg.optimize
assert collections() - before < 20, "gc_paused"  # some hundreds otherwise
assert gc.isenabled()
from tensor_graphs.costdb.store import shards, starter
from tensor_graphs.costdb.store.schema import checked
from tensor_graphs.costdb.store.store import Store
assert len(Store(sys.argv[1], starter=lambda: ["cpu:another"]).snapshot)
assert checked(shards.decode(next(starter.FOLDER.glob("*.parquet")).read_bytes()))[0].num_rows
assert "pandas" not in sys.modules
from tensor_graphs.backends.program.helpers.helper_functions import helper_names
from tensor_graphs.backends.registry import select
from tensor_graphs.backends.tuning.keys import machine_of
assert [machine_of(b.name) for b in select("numpy")] and helper_names(["strided"], ())
assert "tensor_graphs.backends.triton.backend" not in sys.modules
"""


def test_imports_and_starter_rows_take_no_more_time_than_needed(tmp_path: Path) -> None:
    known = {**os.environ, "TENSOR_GRAPHS_STARTER": ""}
    done = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path], env=known, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_workers_collect_young_objects_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker_of_a_test.py").write_text("import gc, sys\nprint(gc.get_threshold()[0], sys.argv[1], __name__)")
    monkeypatch.syspath_prepend(tmp_path)
    with start_line_worker("worker_of_a_test", ["one"]) as process:
        answer, _ = process.communicate(timeout=300)
    assert answer == f"{YOUNG} one __main__\n"
