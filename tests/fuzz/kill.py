"""Processes that are killed while they write: `python -m tests.fuzz.kill [WHAT] [--count N] [--seed N] [--seconds S]`.

A child appends rows to a store, saves programs over an older one, writes e-graphs over an older one, or compacts a
store, again and again; it is killed (SIGKILL) after a random time. Then must hold: each file is the old or the new one,
whole, and can be loaded; no acknowledged row is lost; and after the next start nothing is left behind. Three of four
kills come before a random one of the steps in which files are opened, renamed and removed, so that all steps are met;
the others after a random time. The last line says how many kills there were, how many hit a write under way, and what
failed; the exit code is 1 if anything did. A store and a folder are in use for 25 kills, then new ones begin, so that
the time of a check does not grow; --seconds ends each kind early.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SAYS = "ready"
STEPS = {
    "append": 12,
    "save": 60,
    "compact": 80,
    "report": 8,
}  # opened, renamed or removed files until a kill, at most
SECONDS = 0.1  # until a kill, at most
ROUND = 25  # kills in one folder
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "ctypes.call_function")


# ---------------------------------------------------------------- what is written
def _program(k: int) -> Any:
    """A program that multiplies by k."""
    import numpy as np

    import tensor_graphs as tg
    from tensor_graphs.backends.program.program import Program
    from tensor_graphs.backends.registry import backend
    from tensor_graphs.backends.tuning.unfused import direct_plan
    from tensor_graphs.egraph.ir.graph import Graph

    graph = Graph.of(tg.input("x", (256,)) * tg.param("w", (256,)), name=f"times{k}")
    return Program(direct_plan(graph, [backend("numpy")]), {"w": np.full(256, k, np.float32)})


def _row(size: int) -> Any:
    from tensor_graphs.costdb.keys.key import KernelKey
    from tensor_graphs.costdb.store.schema import TimingRow

    return TimingRow(key=KernelKey("k", "k", "f", "b", "e", "s", shapes=((size,),), device="d"), samples=(float(size),))


def save(folder: Path, begin: int) -> Iterator[str]:
    """Save two programs alternately into one folder; yields a line after each."""
    made = [_program(2), _program(3)]
    made[0].save(folder / "out")
    yield SAYS
    while True:
        for one in made[::-1]:
            one.save(folder / "out")
            yield ""


def saved(folder: Path, message: list[str]) -> str:
    """Problem unless the folder holds exactly one of the two programs, complete."""
    import numpy as np

    from tensor_graphs.backends.program.saved_program import load_program

    y = load_program(folder / "out")(np.ones(256, np.float32))
    if set(y.tolist()) not in ({2.0}, {3.0}):
        return f"the program computes {set(y.tolist())}"
    left = sorted(p.name for p in folder.iterdir() if p.name not in ("out", "home"))
    return f"{left} are left behind" if left else ""


def append(folder: Path, begin: int) -> Iterator[str]:
    """Append rows, one shard each; yields a line for each row when it is durable."""
    from tensor_graphs.costdb.store.store import Store

    store = Store(folder / "db")
    for size in range(begin, 1 << 30):
        if not store.add([_row(size)]).durable:
            raise RuntimeError(f"row {size} was not stored")
        yield str(size)
        if size == begin:  # everything is imported
            yield SAYS


def appended(folder: Path, message: list[str]) -> str:
    """Problem if an acknowledged row is missing."""
    from tensor_graphs.costdb.store.store import Store

    store = Store(folder / "db")
    rows = [int(line) for line in message if line.isdigit()]
    found = {size for size in rows if store.snapshot.has(_row(size).key.digest)}
    if len(found) != len(set(rows)):
        return f"{len(set(rows)) - len(found)} of {len(set(rows))} acknowledged rows are lost"
    return _whole_store(folder, store)


def _whole_store(folder: Path, store: Any) -> str:
    if bad := store.check().bad_shards:
        return f"{len(bad)} bad shards"
    left = [p.name for p in (folder / "db" / "v1").rglob(".*")]
    return f"{left} are left behind" if left else ""


def compact(folder: Path, begin: int) -> Iterator[str]:
    """Write three shards and compact the store, again and again; yields a line for each durable row."""
    from tensor_graphs.costdb.store.store import Store

    store = Store(folder / "db")
    size = begin
    while True:
        for _ in range(3):
            if store.add([_row(size)]).durable:
                yield str(size)
            size += 1
        store.compact()
        yield SAYS if size == begin + 3 else ""


def report(folder: Path, begin: int) -> Iterator[str]:
    """Write two texts alternately over one file, through a symbolic link."""
    from tensor_graphs.writing.files import write_text

    target = folder / "there" / "report.html"
    target.parent.mkdir(exist_ok=True)
    write_text(target, "a" * 100_000)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(target)
    yield SAYS
    while True:
        for letter in "ba":
            write_text(folder / "link", letter * 100_000)
            yield ""


def reported(folder: Path, message: list[str]) -> str:
    """Problem unless the file holds one of the two texts, complete, and no other file is left after it was written
    again.
    """
    from tensor_graphs.writing.files import write_text

    text = (folder / "there" / "report.html").read_text()
    if len(text) != 100_000 or len(set(text)) != 1:
        return f"a text of {len(text)} characters: {sorted(set(text))}"
    write_text(folder / "link", text)
    left = sorted(p.name for p in (folder / "there").iterdir() if p.name != "report.html")
    return f"{left} are left behind" if left else ""


Writes = Callable[[Path, int], Iterator[str]]
WHAT: dict[str, tuple[Writes, Callable[[Path, list[str]], str]]] = {
    "append": (append, appended),
    "save": (save, saved),
    "compact": (compact, appended),
    "report": (report, reported),
}


# ---------------------------------------------------------------- kills
def _write(what: str, folder: Path) -> None:
    """What children do: for each line of the input one run of writing, in a fork that says what it has written."""
    import tensor_graphs.backends.program.program
    import tensor_graphs.backends.tuning.unfused
    import tensor_graphs.costdb.store.store

    for module in ("pyarrow.parquet", "duckdb", "filelock"):
        import_module(module)
    assert tensor_graphs
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            number, begin, steps = map(int, line.split())
            for message in WHAT[what][0](folder / str(number), begin):
                _say(message or ".")
                if message == SAYS and steps:
                    _die_after(steps)
        _say(f"pid {pid}")
        _, status = os.waitpid(pid, 0)
        _say(f"ended {status}")


def _die_after(steps: int) -> None:
    """Have this process kill itself before it opens, renames or removes a file for the so many-th time from here on."""
    left = [steps]

    def step(event: str, _: Any) -> None:
        if event in EVENTS:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one call, so that lines of several processes do not mix


def kills(what: str, count: int, seed: int = 0) -> Iterator[tuple[str, bool]]:
    """Yields, for each kill, the problem found after it ("" for none) and whether a temporary file showed that a
    write was interrupted.
    """
    rng = random.Random(f"{what} {seed}")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # what a kill leaves does not depend on the disk
    with tempfile.TemporaryDirectory(prefix="kills-", dir=memory) as scratch:
        environment = {**os.environ, "TENSOR_GRAPHS_HOME": str(Path(scratch) / "home")}
        command = [sys.executable, "-m", "tests.fuzz.kill", what, "--child", scratch]
        message: list[str] = []
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as child:
            for number in range(count):
                folder = Path(scratch) / str(number // ROUND)
                if number % ROUND == 0:
                    shutil.rmtree(Path(scratch) / str(number // ROUND - 1), ignore_errors=True)
                    folder.mkdir()
                    message = []
                begin = max([0, *(int(s) for s in message if s.isdigit())]) + 1
                steps = rng.randint(1, STEPS[what]) if number % 4 else 0
                lines = _one_kill(child, f"{number // ROUND} {begin}", steps, rng.uniform(0.0, SECONDS))
                message += lines
                hidden = any(p.name.startswith(".") for p in folder.rglob("*"))
                try:
                    yield WHAT[what][1](folder, message), hidden
                except Exception as error:
                    yield f"{type(error).__name__}: {error}", hidden
            assert child.stdin is not None
            child.stdin.close()


def _one_kill(child: subprocess.Popen[str], where: str, steps: int, seconds: float) -> list[str]:
    """Start one run (`where`: its folder and first row) that kills itself after some steps, or is killed after some
    time; what it said."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{where} {steps}\n")
    child.stdin.flush()
    message: list[str] = []
    pid, ready = 0, False
    while not (pid and ready):
        line = child.stdout.readline().strip()
        if line.startswith("pid "):
            pid = int(line.removeprefix("pid "))
        elif line.startswith("ended") or not line:
            raise RuntimeError(f"the child ended by itself: {line}")
        else:
            ready = ready or line == SAYS
            message.append(line)
    if not steps:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    while not (line := child.stdout.readline().strip()).startswith("ended"):
        if not line:
            raise RuntimeError("the child is gone")
        message.append(line)
    return message


def main() -> int:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=list(WHAT))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most, for each kind")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.child:
        _write(given.what, Path(given.child))
        return 0
    total, failed, names = 0, Counter[str](), [given.what] if given.what else list(WHAT)
    for place, what in enumerate(names):
        count = given.count // len(names) + (place < given.count % len(names))
        end = time.monotonic() + given.seconds
        found: list[tuple[str, bool]] = []
        for one in kills(what, count, given.seed):
            found.append(one)
            if time.monotonic() > end:
                break
        wrong = Counter(message for message, _ in found if message)
        print(
            f"{what}: {len(found)} kills, {sum(h for _, h in found)} of them in a write, {wrong.total()} failures",
            flush=True,
        )
        for message, times in wrong.most_common(5):
            print(f"  {times} x {message[:300]}", flush=True)
        total, failed = total + len(found), failed + wrong
    print(f"{total} kills, {failed.total()} failures", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
