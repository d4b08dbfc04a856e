"""Worker processes end with the process that has started them, however it ends, and not with a thread of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

CODE = """
import os, threading
from tensor_graphs.processes.spawn import start_worker
made = []
thread = threading.Thread(target=lambda: made.append(start_worker("sleeping")))
thread.start(), thread.join()
assert made[0].stdout.readline() == b"ready\\n" and made[0].poll() is None
print(made[0].pid, flush=True)
os._exit(0)
"""
WAIT_S = 60.0  # for what must happen


def runs(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_worker_ends_with_its_process_and_not_with_the_thread_that_started_it(tmp_path: Path) -> None:
    """Also one that reads nothing: it imports libraries, or computes in one."""
    (tmp_path / "sleeping.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    end = time.monotonic() + WAIT_S
    while runs(int(done.stdout)):
        assert time.monotonic() < end
        time.sleep(0.01)
