"""Commands on odd paths and hostile files: `python -m tests.fuzz.commands [--count N] [--seed N]`.

Each command runs in this process with --json on a path that is no file (a folder, pipe, socket, device, loop of links,
missing or impossible name), and on N hostile files for each kind of input (rule files of 512 bytes, because checking
takes time for each rule). It must print exactly one JSON document, whose `ok` says whether the exit code is 0, and
return a documented exit code other than 1 within 10 s of CPU time. Files that are findings are kept in `fuzz-findings`.
The last line counts cases and findings; the exit code is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from .hostile import corpus
from .readers import PARTS, READERS

CODES = (0, 2, 3, 4, 5, 6)
SECONDS, WAIT_S = 10.0, 60.0  # of CPU time, and on the clock of a machine that others use
COMMANDS = (
    ("explain",), ("optimize", "-o", "made"), ("saturate", "-o", "made.json"), ("extract",), ("profile",), ("rules", "check"),
    ("rules", "derive"), ("measure", "-o", "shards", "--device", "cpu"), ("db", "merge", "--costdb", "db"),
)  # fmt: skip


def wrong(arguments: Sequence[str]) -> str:
    """Description of a wrong exit code or output of a command; empty if both are right."""
    from tensor_graphs.cli import app as cli

    out, begin = io.StringIO(), (time.process_time(), time.monotonic())
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = cli.run([*arguments, "--json"])
        document = json.loads(out.getvalue())
    except Exception as error:
        return f"{type(error).__name__}: {error}; {out.getvalue()[:200]!r}"
    if code not in CODES or document["ok"] != (code == 0):
        return f"exit code {code}: {document.get('error')}"
    if code and not document["error"]["message"]:
        return f"exit code {code} without a message"
    took, waited = time.process_time() - begin[0], time.monotonic() - begin[1]
    return f"took {took:.0f} s, {waited:.0f} s on the clock" if took > SECONDS or waited > WAIT_S else ""


def odd_paths(folder: Path) -> Iterator[str]:
    """Paths that are not readable plain files."""
    os.mkfifo(folder / "pipe.onnx")
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    (folder / "dangling.json").symlink_to(folder / "gone")
    (folder / "empty.json").touch()
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(folder):
        made.bind("socket")
    names = (
        "pipe.onnx",
        "loop.safetensors",
        "dangling.json",
        "empty.json",
        "socket",
        "missing.onnx",
        "n" * 5000,
        "a\0b",
    )
    yield from (*(str(folder / name) for name in names), str(folder), "/dev/null", "/dev/zero")


def paths(folder: Path) -> Iterator[tuple[str, ...]]:
    """Every command on every odd path."""
    with contextlib.chdir(folder):
        for path in odd_paths(folder):
            for name, *more in COMMANDS:
                sub = [more.pop(0)] if more and not more[0].startswith("-") else []
                yield name, *sub, path, *more


def files(folder: Path, count: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Commands on hostile files: models, e-graphs, saved programs, rules."""
    for reader, name, command in (
        ("safetensors", "m.safetensors", ("explain",)), ("onnx", "m.onnx", ("explain",)), ("egraph", "e.json", ("extract", "--time-limit", "2")),
        ("rules", "r.txt", ("rules", "check")), ("program", "", ("explain",)),
    ):  # fmt: skip
        place = folder / reader
        place.mkdir()
        good = READERS[reader].good(place)
        for content in corpus(good, count, seed):
            path = place / name
            if name:
                path.write_bytes(content[: 1 << 9] if reader == "rules" else content)
                yield *command, str(path), *(("-o", str(place / "out")) if reader == "egraph" else ())
                continue
            part = PARTS[content[0] % len(PARTS)] if content else PARTS[0]
            whole = (place / "p" / part).read_bytes()
            (place / "p" / part).write_bytes(content[1:])
            yield *command, str(place / "p")
            (place / "p" / part).write_bytes(whole)


def findings(folder: Path, count: int, seed: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """(arguments, what is wrong) of each case."""
    for made in (paths(folder), files(folder, count, seed)):
        for arguments in made:
            yield arguments, wrong(arguments)


def main() -> int:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    total, found, keep = 0, 0, Path("fuzz-findings").absolute()
    with tempfile.TemporaryDirectory(prefix="commands-") as scratch:
        os.environ["TENSOR_GRAPHS_HOME"] = str(Path(scratch) / "home")
        for arguments, message in findings(Path(scratch), given.count, given.seed):
            total += 1
            if message:
                found += 1
                print(f"{' '.join(arguments)[:200]!r}: {message[:500]}", flush=True)
                keep.mkdir(exist_ok=True)
                for path in (Path(a) for a in arguments[1:] if a.startswith(scratch)):
                    if path.is_file():
                        shutil.copy(path, keep / f"command-{found}")
                    elif path.is_dir() and path != Path(scratch):
                        shutil.copytree(path, keep / f"command-{found}")
    print(f"{total} commands, {found} findings", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
