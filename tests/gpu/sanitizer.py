"""Every class of generated kernels, as emitted programs without this package, alone and under NVIDIA's
compute-sanitizer:

    python tests/gpu/sanitizer.py FOLDER [--tools memcheck racecheck] [--only CLASS ...] [--jobs 8] [--seconds 240]

Writes FOLDER/sanitizer.md, a table of class -> errors, and what was reported beside it. Exits with 1 where there is an
error. Memory is asked of the driver for each tensor (no cache of Torch's), with a margin around it, so that what lies
beside a tensor is nobody's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = {
    "memcheck": ("--padding", "512", "--leak-check", "no"), "racecheck": ("--racecheck-report", "analysis"), "synccheck": (), "initcheck": (),
}  # fmt: skip
REPORT = re.compile(
    r"=========\s+(Invalid|Misaligned|Error: |Warning: |Race reported|Barrier error|Uninitialized|Address|Out-of-range)"
)
ACCESS = re.compile(r"(Read|Write) (?:Thread .*|access) at ([A-Za-z_]\w*_[0-9a-f]{10}\w*)\+0x([0-9a-f]+)")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
WHOLE_BARRIER = re.compile(r"BAR\.SYNC\S* 0x1$")  # Triton's barrier of all warps of a block, unless under a predicate
NEAR = 4  # instructions between a barrier and what is read behind it or written before it, at most
TOLD = re.compile(r"^(\S+): (\S+) (ok|wrong)$")
BEGUN = re.compile(r"^(\S+): begun$")
COMPILE = """
import runpy, sys
kernel = runpy.run_path(sys.argv[1])["CudaKernel"].known[sys.argv[2]]
open(sys.argv[3], "wb").write(bytes(kernel.compiled("sm_90").code))
"""  # a kernel of a program.py, for the GPUs of which the proofs below know the instructions
KEPT = 60  # lines of the reports of a tool that are kept


@dataclass
class Seen:
    """What one pass over programs showed."""

    right: dict[str, str] = field(default_factory=dict)  # program -> its error
    wrong: dict[str, str] = field(default_factory=dict)  # program -> what happened
    reports: Counter[str] = field(default_factory=Counter)  # program, or "" for reports that name no program -> errors
    false: Counter[str] = field(default_factory=Counter)  # program -> reports that the machine code refutes
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Seen) -> None:
        """Take another pass's."""
        self.right |= other.right
        self.wrong |= other.wrong
        self.reports += other.reports
        self.false += other.false
        self.lines += other.lines


def reported(output: str, owners: Mapping[str, str], listing: Callable[[str], str] = lambda kernel: "") -> Seen:
    """The errors in a sanitizer's output by program, and their lines. `owners`: program by kernel name; an error in
    another kernel is nobody's. `listing` disassembles a kernel."""
    seen, blocks = Seen(), list[list[str]]()
    for line in output.splitlines():
        if not line.startswith("=========") or "Host Frame" in line or "host backtrace" in line:
            continue
        if REPORT.match(line):
            blocks.append([])
        if blocks and "SUMMARY" not in line:
            blocks[-1].append(line)
    for block in blocks:
        text = "\n".join(block)
        names = re.findall(r"[A-Za-z_]\w*_[0-9a-f]{10}\w*", text)
        owner = next((owners[n] for n in names if n in owners), "")
        accesses = {(kind, kernel, int(offset, 16)) for kind, kernel, offset in ACCESS.findall(text)}
        (seen.false if is_false(accesses, listing) else seen.reports)[owner] += 1
        seen.lines += block
    return seen


def is_false(accesses: Set[tuple[str, str, int]], listing: Callable[[str], str]) -> bool:
    """Whether a kernel's machine code refutes a reported race. `accesses`: (Read or Write, kernel, offset)."""
    kernels = {kernel for _, kernel, _ in accesses}
    if len(kernels) != 1:
        return False
    code = listing(*kernels)
    reads, writes = ([at for kind, _, at in accesses if kind == wanted] for wanted in ("Read", "Write"))
    if gives_out_roles(code, reads, writes):
        return True
    return len(reads) == len(writes) == 1 and starts_barrier(code, writes[0], reads[0])


def gives_out_roles(listing: str, reads: Sequence[int], writes: Sequence[int]) -> bool:
    """Whether warps read the byte that says what role they have at each offset `reads`, behind a barrier of all the
    block's warps, and each of `writes` stores these bytes before such a barrier. (Triton's; racecheck reports it where
    roles have barriers of their own beside.)"""
    code = instructions(listing)
    places = [place for place, _ in code]
    if not reads or not {*reads, *writes} <= {*places}:
        return False
    reading, writing = map(places.index, reads), map(places.index, writes)
    barriers = {i for i, (_, text) in enumerate(code) if WHOLE_BARRIER.match(text)}
    return all("LDS.U8" in code[i][1] and barriers & {*range(i - NEAR, i)} for i in reading) and all(
        code[i][1].startswith("STS") and barriers & {*range(i, i + NEAR + 1)} for i in writing
    )


def starts_barrier(listing: str, write: int, read: int) -> bool:
    """Whether thread 0 of a block makes an mbarrier at the offset `write` and arrives there at `read`: accesses of one
    thread, in its order. (Of CUDA C++: the instruction that makes it is one of a whole warp, and racecheck reports it.)

    Both run unless the predicate `SR_TID.X != 0` holds (blocks have one dimension), on the same address, without a
    branch between them.
    """
    block = next((b for b in straight(listing) if {write, read} <= {place for place, _ in b}), [])
    places, texts = [place for place, _ in block], [text for _, text in block]
    if write not in places or read not in places:
        return False
    at, end = places.index(write), places.index(read)
    made = re.fullmatch(r"@!(UP\d) SYNCS\.EXCH\.64 URZ, \[(UR\d+)\], UR\d+", texts[at])
    arrives = re.fullmatch(r"@!(P\d) SYNCS\.ARRIVE\S* RZ, \[(UR\d+)\], R\d+", texts[end])
    if at >= end or made is None or arrives is None or made[2] != arrives[2]:
        return False
    voted, _ = last(texts[:at], rf"VOTEU\.ALL {made[1]}, {arrives[1]}")
    chosen, thread = last(texts[:voted], rf"ISETP\.NE\.AND {arrives[1]}, PT, (R\d+), RZ, PT")
    known, _ = last(texts[:chosen], rf"S2R ({thread}), SR_TID\.X")
    kept = [(thread, known, chosen), (arrives[1], chosen, end), (made[1], voted, at), (made[2], at, end)]
    return 0 <= known < chosen < voted and all(
        one not in written(text) for one, i, j in kept for text in texts[i + 1 : j]
    )


def instructions(listing: str) -> list[tuple[int, str]]:
    """(offset, text) of each instruction of a listing."""
    return [(int(m[1], 16), m[2]) for m in INSTRUCTION.finditer(listing)]


def straight(listing: str) -> Iterator[list[tuple[int, str]]]:
    """The instructions of a listing in parts without labels and branches inside."""
    for part in re.split(r"^\s*\.L\S*:", listing, flags=re.MULTILINE):
        block: list[tuple[int, str]] = []
        for place, text in instructions(part):
            if re.search(r"\b(BRA|BRX|JMP|JMX|CALL|RET|EXIT|BSYNC|BREAK|WARPSYNC|YIELD)\b", text):
                yield block
                block = []
            else:
                block.append((place, text))
        yield block


def last(texts: Sequence[str], pattern: str) -> tuple[int, str]:
    """(index, last group) of the last text that a pattern matches as a whole; (-1, "") if there is none."""
    found = ((i, re.fullmatch(pattern, texts[i])) for i in reversed(range(len(texts))))
    return next(((i, m[m.lastindex or 0]) for i, m in found if m), (-1, ""))


def written(text: str) -> set[str]:
    """The registers and predicates that an instruction may write: its first two operands (of a vote the first), and
    what follows a register that a wide instruction names."""
    opcode, _, rest = re.sub(r"^@!?\S+\s+", "", text).partition(" ")
    found = {o.strip() for o in rest.split(",")[: 1 if opcode.startswith("VOTEU") else 2]}
    if re.search("64|128|WIDE", opcode):
        found |= {f"{m[1]}{int(m[2]) + k}" for o in found if (m := re.fullmatch(r"(U?R)(\d+)", o)) for k in range(4)}
    return found


def disassembled(folder: Path, names: Mapping[str, str], kernel: str) -> str:
    """A kernel's instructions: of a binary in Triton's cache, or of its CUDA C++ compiled again; empty where there is
    no tool for that, or no such kernel. `names`: the program of `folder` in which a kernel is."""
    import triton

    own = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    tool = str(own) if own.exists() else shutil.which("nvdisasm")
    found = next((folder / "triton").rglob(f"{kernel}.cubin"), None)
    if tool is None or kernel not in names:
        return ""
    if found is None:
        found = folder / f"{kernel}.cubin"
        given = [str(folder / names[kernel] / "program.py"), kernel, str(found)]
        if subprocess.run([sys.executable, "-c", COMPILE, *given], check=False, capture_output=True).returncode:
            return ""
    return subprocess.run([tool, "-c", str(found)], capture_output=True, text=True, check=False).stdout


def kernels_of(folder: Path) -> set[str]:
    """The names of the generated kernels in a program's text."""
    return set(re.findall(r"\b[a-z]+_[0-9a-f]{10}\w*", (folder / "program.py").read_text(encoding="utf-8")))


def passed(folder: Path, names: Sequence[str], tool: str, until: float) -> Seen:
    """Run programs one after the other in a process, under a tool if one is named; where it ends early, the one that
    ended it is to blame, and another process goes on with the next."""
    seen, left = Seen(), list(names)
    command = [sanitizer(), "--tool", tool, "--report-api-errors", "no", *TOOLS[tool]] if tool else []
    environment = {
        **os.environ, "TRITON_CACHE_DIR": str(folder / "triton"), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": "",
        "CUDA_MODULE_LOADING": "LAZY",
    }  # fmt: skip
    while left:
        began, seconds = time.monotonic(), until - time.monotonic()
        if seconds < 1:
            seen.wrong |= dict.fromkeys(left, "not run: the time was up")
            break
        runs = [*command, sys.executable, str(HERE / "run_program.py"), *(str(folder / n) for n in left)]
        try:
            done = subprocess.run(runs, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
            output, ended = done.stdout + done.stderr, f"the process ended with code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            parts = (error.stdout or b"", error.stderr or b"")
            output, ended = (
                "".join(p if isinstance(p, str) else p.decode(errors="replace") for p in parts),
                "stopped: the time was up",
            )
        told = [m.groups() for line in output.splitlines() if (m := TOLD.match(line))]
        seen.right |= {n: e for n, e, verdict in told if verdict == "ok"}
        seen.wrong |= {n: f"error {e}" for n, e, verdict in told if verdict == "wrong"}
        owners = {k: n for n in left for k in kernels_of(folder / n)}
        seen.add(reported(output, owners, partial(disassembled, folder, owners)))
        seen.seconds += time.monotonic() - began
        behind = [n for n in left if n not in {n for n, *_ in told}]
        if not behind:
            break
        begun = [m[1] for line in output.splitlines() if (m := BEGUN.match(line))]
        guilty = begun[-1] if begun and begun[-1] in behind else behind[0]
        last = [line for line in output.splitlines() if line.strip() and not line.startswith("=========")][-1:]
        seen.wrong[guilty] = f"{ended}: {''.join(last)[:200]}"
        left = behind[behind.index(guilty) + 1 :]
    return seen


def sanitizer() -> str:
    """Where compute-sanitizer is; "" where it is not."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return found if Path(found).exists() else ""


def table(classes: Mapping[str, Sequence[str]], seen: Mapping[str, Seen]) -> str:
    """A row for each class: programs, the largest error, and for each tool how many errors it reported, or what went
    wrong."""
    tools = [tool for tool in seen if tool]
    rows = [f"| class | programs | largest error | {' | '.join(('alone', *tools))} |", "|---" * (4 + len(tools)) + "|"]
    for name, programs in classes.items():
        errors = [float(e) for p in programs if (e := seen[""].right.get(p))]
        cells = [
            name,
            str(len(programs)),
            f"{max(errors):.1e}" if errors else "",
            *(cell(programs, one) for one in seen.values()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if any(one.false for one in seen.values()):
        rows += [
            "",
            "+n: reports that the machine code refutes: of the byte by which Triton gives out roles, with a barrier of all warps "
            "between its store and its loads, or of an mbarrier at which the thread arrives that made it.",
        ]
    others = {tool: n for tool, one in seen.items() if (n := one.reports[""])}
    if others:
        rows += ["", f"In kernels of libraries: {', '.join(f'{tool} {n}' for tool, n in others.items())}."]
    return "\n".join(rows) + "\n"


def cell(programs: Sequence[str], one: Seen) -> str:
    """What a pass says of a class."""
    wrong = [f"{p}: {one.wrong[p]}" for p in programs if p in one.wrong]
    count = sum(one.reports[p] for p in programs)
    false = sum(one.false[p] for p in programs)
    told = "; ".join([*([f"**{count}**"] if count else []), *wrong]).replace("|", "/") or "0"
    return f"{told} +{false}" if false else told


def main() -> int:
    """Write the programs, run them, write the table; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tools", nargs="*", default=["memcheck", "racecheck"], choices=TOOLS)
    parser.add_argument("--jobs", type=int, default=8, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of classes, as in the table")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        return checked(options, Path(folder), until)


def checked(options: argparse.Namespace, folder: Path, until: float) -> int:
    """As `main`, with the programs in a folder."""
    sys.path.insert(0, str(HERE))
    import programs

    classes = programs.write(folder, *options.only)
    print(f"{sum(map(len, classes.values()))} programs of {len(classes)} classes written")
    if not sanitizer():
        print("there is no compute-sanitizer here: programs are only run alone")
        options.tools = []
    names = [name for found in classes.values() for name in found]
    seen: dict[str, Seen] = {}
    for tool in ("", *options.tools):
        began, seen[tool] = time.monotonic(), Seen()
        with ThreadPoolExecutor(options.jobs) as pool:
            shares = [names[i :: options.jobs] for i in range(options.jobs)]
            for one in pool.map(partial(passed, folder, tool=tool, until=until), shares):
                seen[tool].add(one)
        reports = sum(seen[tool].reports.values())
        print(
            f"{tool or 'alone'}: {time.monotonic() - began:.0f} s, {len(seen[tool].wrong)} wrong, {reports} reports",
            flush=True,
        )
        (options.folder / f"{tool or 'alone'}.txt").write_text("\n".join(seen[tool].lines[: KEPT * 20]) + "\n")
        (options.folder / "sanitizer.md").write_text(table(classes, seen))
    (options.folder / "sanitizer.json").write_text(json.dumps(classes, indent=1) + "\n")
    bad = sum(len(one.wrong) + sum(n for p, n in one.reports.items() if p) for one in seen.values())
    print(f"{len(classes)} classes, {len(names)} programs: {bad} errors under {', '.join(('no tool', *options.tools))}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
