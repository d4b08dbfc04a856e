"""Searches in hostile environments, each in a process of its own: does it end in a result or a named error, and is
nothing left behind?

    python -m tests.fuzz.environments [CASE] --count 20 --seed 0

Cases (environment_cases.py): a model file that is cut short, a full disk and a limit on the size of files, few file
descriptors, a home of another user, a clock that jumps, signals at random moments, a compiler that hangs, programs used
by threads and forked children while they are saved and released; calls from finalizers, signal handlers, `atexit`,
`asyncio` and forked children; options of the interpreter, environment variables, limits of the system, states of the
process (umask, blocked signals, tracing, recursion limit), packages beside the script that are called as known ones.
Prints each outcome; ends with 1 if a process crashed, ended in an unnamed error, gave a wrong result, or left processes
or files. `--number` takes that one of a case's environments, else one is drawn.
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
from textwrap import indent

from .environment_cases import CASES, CHILD, Case

NAMED, WRONG = 3, 4  # exit codes of children: a named error, a wrong result
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)


def code_of(case: Case) -> str:
    """The code of a child."""
    code = CHILD.replace("EARLY", case.early)
    for name, text in (("BEFORE", case.before), ("AFTER", case.after)):
        code = code.replace("    " + name, indent(text.strip("\n") or "pass", "    "))
    return code


def run(case: str, number: int, draw: float, backend: str, scratch: Path, place: Path) -> tuple[str, bool]:
    """(outcome of one child in the folder `scratch`, whether it is a fault). `number`: of the environment among those
    of the case; `place`: folder of its home, its temporary files and what it saves."""
    one = CASES[case][number]
    environment = {**os.environ, "TENSOR_GRAPHS_HOME": str(place / "home"), "BACKEND": backend}
    environment["TMPDIR"] = str(place / "tmp")
    environment = {k: v for k, v in {**environment, **one.variables}.items() if v}
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    if one.beside:
        (place / "tmp" / one.beside).mkdir()
        (place / "tmp" / one.beside / "__init__.py").write_text("")
    if case == "hang":
        (scratch / "cc").write_text('#!/bin/sh\ncase "$*" in *-dM*) exec cc "$@";; esac\nsleep 600\n')
        (scratch / "cc").chmod(0o755)
        environment["CC"] = str(scratch / "cc")
    command = [sys.executable, *one.options, "-c", code_of(one), str(scratch), str(draw), str(place)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        cwd=place / "tmp" if one.beside else None,
    ) as child:  # fmt: skip
        sent = 0
        if case == "signal" and child.stdout is not None and child.stdout.readline():
            time.sleep(12 * draw)
            sent = SIGNALS[int(draw * 1000) % len(SIGNALS)]
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
    outcome = f"{case} {number} {backend}: {child.returncode}" + (f" {last}" if child.returncode == NAMED else "")
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
    parser.add_argument("--number", type=int)
    parser.add_argument("--backend", choices=["numpy", "c", "torch", "auto"])
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
                backend = given.backend or ("c" if case == "hang" else rng.choice(["numpy", "c", "torch", "auto"]))
                one = rng.randrange(len(CASES[case])) if given.number is None else given.number
                outcome, fault = run(case, one, rng.random(), backend, Path(scratch), place)
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
