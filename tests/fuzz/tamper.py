"""Caches that are changed beside their checks: `python -m tests.fuzz.tamper [--rounds N] [--seed N]`.

Two models are optimized with C kernels, so that there are two plans and their libraries. Then, in each round, one file
of the plan cache or of the folder of compiled kernels, or a cost store's cache snapshot, is changed: a byte, its end,
another file's content in its place, another owner (as root) or mode, a link, a folder, a library of foreign code in its
place. Before the next optimization, or while it runs, by a process of its own. The program must then compute what the
graph means, or the call ends in an error of this package; and no foreign code has run. Prints a count for each kind of
change; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import tensor_graphs as tg
from tensor_graphs.backends.c.helpers import c_compiler
from tensor_graphs.costdb.store import cache_snapshot
from tensor_graphs.costdb.store.cache import LoadedCache, load_memory
from tensor_graphs.costdb.store.snapshot import LOADED
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.errors import TensorGraphsError

X = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
OTHER = 12345  # user id of another user
FACTORS = (2.0, 3.0)


def model(factor: float) -> tg.Tensor:
    """A chain whose result depends on a constant, so that the two programs differ in values only."""
    x = tg.input("x", X.shape)
    return tg.tanh(x * factor + 1.0) * factor - tg.exp(x * 0.1) * 0.5


def right(program: Any, factor: float) -> bool:
    """Whether a program computes the model."""
    want = np.tanh(X * np.float64(factor) + 1) * factor - np.exp(X * np.float64(0.1)) * 0.5
    return bool(np.allclose(program(X), want, rtol=1e-4, atol=1e-4))


# ---------------------------------------------------------------- changes
def byte(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """One byte is another one."""
    whole = bytearray(path.read_bytes())
    whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    write(path, bytes(whole))


def cut(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """The end is missing."""
    whole = path.read_bytes()
    write(path, whole[: rng.randrange(len(whole))])


def swapped(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """Another file of the same kind is in its place, and it in the other's."""
    other = rng.choice(others)
    here, there = path.read_bytes(), other.read_bytes()
    write(path, there)
    write(other, here)


def owner(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """Foreign content of another user (as root; else of this user, writable by all)."""
    write(path, evil.read_bytes())
    os.chown(path, OTHER, OTHER) if os.getuid() == 0 else path.chmod(0o666)


def mode(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """Foreign content that all can write."""
    write(path, evil.read_bytes())
    path.chmod(0o666)


def link(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """A link to foreign content, or to itself."""
    path.unlink(missing_ok=True)
    path.symlink_to(rng.choice((evil, path)))


def folder(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """A folder in its place."""
    path.unlink(missing_ok=True)
    path.mkdir()


def foreign(path: Path, others: list[Path], rng: random.Random, evil: Path) -> None:
    """Foreign content without a checksum."""
    write(path, evil.read_bytes())


def write(path: Path, content: bytes) -> None:
    """A new file in place of an old one: a library that is in use is not changed in place."""
    part = path.with_name(f"{path.name}.new")
    part.write_bytes(content)
    part.replace(path)


Change = Callable[[Path, list[Path], random.Random, Path], None]
CHANGES: tuple[Change, ...] = (byte, cut, swapped, owner, mode, link, folder, foreign)


def files(home: Path, kind: str) -> list[Path]:
    """Files of a kind: "plans", "c", "snapshot"."""
    found = {"plans": home.glob("plans/*.json"), "c": home.glob("c/*.so"), "snapshot": home.rglob("cache-*/*.arrow")}[
        kind
    ]
    return sorted(p for p in found if p.is_file() and not p.is_symlink())


# ---------------------------------------------------------------- rounds
def optimized(home: Path, factor: float, budget: float = 0.5) -> Any:
    """The program of `model(factor)`, searched with the caches in `home`."""
    with patch.dict(os.environ, TENSOR_GRAPHS_HOME=str(home)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tg.optimize(model(factor), backend="c", budget=budget, effort=0, costdb=str(home / "db"))


def change(home: Path, kind: str, how: Change, seed: int, evil: Path) -> bool:
    """Change all files of a kind; whether there was one to change."""
    rng, there = random.Random(seed), files(home, kind)
    if len(there) < (2 if how is swapped else 1):
        return False
    for path in there[::2] if how is swapped and len(there) == 2 else there:
        how(path, [p for p in there if p != path], rng, evil)
    return True


def keep_changing(home: str, kind: str, how: int, seed: int, evil: str) -> None:
    """What the second process does: changes until it is ended."""
    for turn in range(1000):
        with suppress(OSError, ValueError):
            change(Path(home), kind, CHANGES[how], seed + turn, Path(evil))
        time.sleep(0.002)


def rows(loaded: LoadedCache) -> list[str]:
    """The timings of a store, in words."""
    return sorted(map(repr, zip(*(loaded.snapshot.column("timing", name) for name in LOADED["timing"]))))


def foreign_library(folder: Path) -> tuple[Path, Path]:
    """(a library that leaves a mark when it is loaded, the mark)."""
    mark, text, made = folder / "mark", folder / "evil.c", folder / "evil.so"
    code = '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen("MARK", "w")); }\n'
    text.write_text(code.replace("MARK", str(mark)))
    subprocess.run([*c_compiler(), "-shared", "-fPIC", "-o", made, text], check=True)
    return made, mark


def one_round(seed: int, kind: str, how: int, racing: bool, home: Path, evil: Path) -> tuple[str, str]:
    """(what happened, what is wrong or "") when a file is changed and both models are optimized again."""
    racer = None
    if racing:
        at = (str(home), kind, how, seed, str(evil))
        racer = multiprocessing.get_context("fork").Process(target=keep_changing, args=at)
        racer.start()
    elif not change(home, kind, CHANGES[how], seed, evil):
        return "nothing to change", ""
    message = []
    try:
        if kind == "snapshot":  # read where another process holds the cache
            (file,) = (home / "db").glob("cache-*/*.duckdb")
            same = rows(load_memory(home / "db", file)) == rows(load_memory(home / "db"))
            return ("the rows of the shards", "") if same else ("", "other rows than those of the shards")
        for factor in FACTORS:
            try:
                program = optimized(home, factor)
            except TensorGraphsError as error:
                message.append(error.code)
                continue
            if not right(program, factor):
                return "", f"the model of {factor} is wrong"
            message.append("cached" if program.report.from_plan_cache else "searched")
    except Exception as error:  # anything that is not named
        return "", f"{type(error).__name__}: {error}"
    finally:
        if racer is not None:
            racer.terminate()
            racer.join()
    return " ".join(sorted(message)), ""


def tampered(rounds: int, seed: int, racing: bool) -> tuple[Counter[str], list[str]]:
    """(how often each kind of change ended how, what was wrong)."""
    ends, wrong = Counter[str](), list[str]()
    small = patch.object(cache_snapshot, "MIN_NEW_SHARDS", 1)  # written for small stores, too
    with small, tempfile.TemporaryDirectory(prefix="tamper-") as name:
        scratch = Path(name)
        evil, mark = foreign_library(scratch)
        content = evil.read_bytes()
        clean, home = scratch / "clean", scratch / "home"
        for _ in range(2):  # the second time from the caches
            for factor in FACTORS:
                optimized(home, factor, 20.0)
        assert len(Store(home / "db").snapshot) and files(home, "snapshot")
        shutil.copytree(home, clean)
        for turn in range(rounds):
            kind, how = ("plans", "c", "snapshot")[turn % 3], (seed + turn // 3) % len(CHANGES)
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(clean, home)
            end, message = one_round(seed + turn, kind, how, racing, home, evil)
            ends[f"{kind} {CHANGES[how].__name__}{' while read' if racing else ''}: {end}"] += 1
            if evil.read_bytes() != content:
                message += " a file that a link leads to was written"
                evil.write_bytes(content)
            if mark.exists():
                message += " foreign code has run"
                mark.unlink()
            if message:
                wrong.append(f"round {turn}, seed {seed}, {kind} {CHANGES[how].__name__}: {message}")
    return ends, wrong


def main() -> int:
    """Run the command line that the module describes."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.tamper", description=__doc__)
    parser.add_argument("--rounds", type=int, default=48, help="each: before an optimization, and while one runs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = 0
    for racing in (False, True):
        ends, wrong = tampered(given.rounds, given.seed, racing)
        for end, times in sorted(ends.items()):
            print(f"{times:4d} {end}", flush=True)
        for message in wrong:
            print(f"WRONG {message}", flush=True)
        failed += len(wrong)
    print(f"{2 * given.rounds} rounds, {failed} wrong", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
