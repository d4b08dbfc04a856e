"""Searches in hostile environments, each in a process of its own: does it end in a result or a named error, and is
nothing left behind?

    python -m tests.fuzz.environments [CASE] --count 20 --seed 0

Cases: a model file that is cut short, a full disk and a limit on the size of files, few file descriptors, a home of
another user, a clock that jumps, signals at random moments, a compiler that hangs, a PyTorch that cannot be imported,
programs used by threads and forked children while they are saved and released. Prints each outcome with its number;
ends with 1 if a process crashed, ended in an unnamed error, gave a wrong result, or left processes or files.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

NAMED, WRONG = 3, 4  # exit codes of children: a named error, a wrong result
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: What a child does; `before` is set up by the case. `folder`: its scratch folder; `draw`: a random number in [0, 1).
CHILD = """
import os, resource, signal, sys, threading, time
import numpy as np
import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.models.files.native import save_graph
folder, draw, place = sys.argv[1], float(sys.argv[2]), sys.argv[3]  # `place`: of the home and of results
n = 600
weights = {k: np.random.default_rng(i).standard_normal((n, n)).astype(np.float32) for i, k in enumerate("wv")}
x, w, v = tg.input("x", (8, n)), tg.param("w", (n, n)), tg.param("v", (n, n))
save_graph(Graph.of(tg.relu(x @ w) @ v, params=weights, name="g"), folder + "/m.safetensors")
given = np.ones((8, n), np.float32)
wanted = np.maximum(given.astype(float) @ weights["w"], 0) @ weights["v"]
def check(y):
    if not np.allclose(y, wanted, rtol=1e-3, atol=1e-1): os._exit(4)
print("begin", flush=True)
try:
    BEFORE
    program = tg.optimize(folder + "/m.safetensors", backend=os.environ["BACKEND"], budget=2)
    check(program(given))
    program.save(place + "/saved")
    AFTER
    check(tg.load_program(place + "/saved")(given))
except tg.errors.TensorGraphsError as error:
    print(type(error).__name__, str(error).splitlines()[0][:150], flush=True)
    sys.exit(3)
"""
FORKED = """
    child = os.fork()
    if not child: check(program(given)); os._exit(0)
    if os.waitpid(child, 0)[1]: os._exit(4)
    def calls():
        for _ in range(50): check(program(given))
    threads = [threading.Thread(target=calls) for _ in range(3)]
    for t in threads: t.start()
    for i in range(3): program.save(f"{folder}/saved{i}"); tg.load_program(f"{folder}/saved{i}")
    del calls
    for t in threads: t.join()
"""
CUT = """
    def cut(): time.sleep(4 * draw); os.truncate(folder + "/m.safetensors", 9000)
    threading.Thread(target=cut, daemon=True).start()
"""
USER = """
    tg.optimize(folder + "/m.safetensors", backend=os.environ["BACKEND"], budget=1)
    os.chmod(folder, 0o755); os.setegid(65534); os.seteuid(65534)
"""
#: Name -> (code before the search, code after it).
CASES = {
    "cut": (CUT, ""),
    "large": ("    resource.setrlimit(resource.RLIMIT_FSIZE, (int(10 ** (3 + 4 * draw)),) * 2)", ""),
    "files": ("    resource.setrlimit(resource.RLIMIT_NOFILE, (int(5 + 30 * draw),) * 2)", ""),
    "user": (USER, "    os.seteuid(0)"),
    "clock": ("    past = time.time; time.time = lambda: past() + 1e7 * (draw - 0.5) * (int(past() * 3) % 2)", ""),
    "signal": ("", ""),
    "hang": ("", ""),
    "shared": ("", FORKED),
    "full": ("", ""),
}


def run(case: str, draw: float, backend: str, scratch: Path, place: Path) -> tuple[str, bool]:
    """(outcome of one child in the folder `scratch`, whether it is a fault). `place`: folder of its home, its temporary
    files and what it saves."""
    before, after = CASES[case]
    code = CHILD.replace("    BEFORE", before.strip("\n") or "    pass").replace(
        "    AFTER", after.strip("\n") or "    pass"
    )
    environment = {**os.environ, "TENSOR_GRAPHS_HOME": str(place / "home"), "BACKEND": backend}
    environment["TMPDIR"] = str(place / "tmp")
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    if case == "hang":
        (scratch / "cc").write_text('#!/bin/sh\ncase "$*" in *-dM*) exec cc "$@";; esac\nsleep 600\n')
        (scratch / "cc").chmod(0o755)
        environment["CC"] = str(scratch / "cc")
    command = [sys.executable, "-c", code, str(scratch), str(draw), str(place)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as child:
        sent = 0
        if case == "signal" and child.stdout is not None and child.stdout.readline():
            time.sleep(12 * draw)
            sent = SIGNALS[int(draw * 1000) % 3]
            child.send_signal(sent)
        output, errors = child.communicate(timeout=300)
    for _ in range(20):  # workers end when they find that their parent is gone
        if not _left(scratch):
            break
        time.sleep(0.5)
    left = _left(scratch, end=True)
    hidden = [p.name for p in place.iterdir() if p.name.startswith(".")] if not sent else []
    last = (output.strip().splitlines() or [""])[-1]
    code_ok = child.returncode in (0, NAMED) or (sent and child.returncode in (-sent, 128 + sent, 1))
    outcome = f"{case} {backend}: {child.returncode}" + (f" {last}" if child.returncode == NAMED else "")
    if not code_ok:
        outcome += f" {errors.strip()[-400:]}"
    if left or hidden:
        outcome += f"; left: {left} {hidden}"
    return outcome, not code_ok or bool(left or hidden)


def _left(scratch: Path, end: bool = False) -> list[str]:
    """Commands of processes that still have `scratch` in their environment or arguments. `end`: they are killed."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            text = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
            if str(scratch).encode() in text and (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append((place / "cmdline").read_text().replace("\0", " ")[:80])
                if end:
                    os.kill(int(place.name), signal.SIGKILL)
        except OSError:
            continue
    return found


def main() -> int:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=list(CASES))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    rng, found, faults = random.Random(given.seed), Counter[str](), 0
    end = time.monotonic() + given.seconds
    for number in range(given.count):
        case = given.case or list(CASES)[number % len(CASES)]
        with tempfile.TemporaryDirectory(prefix="environments-") as scratch:
            full = Path(scratch) / "full"
            place = Path(scratch)
            if case == "full":
                full.mkdir()
                size = int(10 ** (4.5 + 2.5 * rng.random()))
                if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", full], check=False).returncode:
                    continue
                place = full
            try:
                backend = "c" if case == "hang" else rng.choice(["numpy", "c", "torch"])
                outcome, fault = run(case, rng.random(), backend, Path(scratch), place)
            finally:
                if case == "full":
                    subprocess.run(["umount", "-l", full], check=False)
        found[outcome] += 1
        faults += fault
        print("FAULT" if fault else "fine", outcome, flush=True)
        if time.monotonic() > end:
            break
    print(f"{found.total()} searches, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
