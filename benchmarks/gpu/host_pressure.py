"""What a command's host does meanwhile: `python -m benchmarks.gpu.host_pressure [--touch GIB] [--every S] [--to FILE]
-- COMMAND ...`.

Runs a command and reads the counters of the whole machine in intervals: cores busy in user and kernel mode, waiting for
disks, or taken by the hypervisor (steal); minor and major page faults a second; MB read from disks a second; free
memory. `--touch`: so much memory is written and given back before the command starts, which makes a virtual machine
whose memory grows on demand have it. The command's output is passed on; the table follows it, with lines of the output
that name a stage (as `benchmarks.decoding.search --on-gpu` prints them) at their time. `--to` writes the rows as JSON.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

Counters = dict[str, float]
KERNEL = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
VM = {"pgfault": "faults", "pgmajfault": "major", "pgpgin": "read_kb"}


def counters() -> Counters:
    """Seconds of all cores by state, page faults, KB read from disks, all since boot; MB of free memory, processes that
    want a core."""
    ticks = os.sysconf("SC_CLK_TCK")
    cores = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    found: Counters = {name: int(n) / ticks for name, n in zip(KERNEL, cores)}
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, number = line.split()
        if name in VM:
            found[VM[name]] = float(number)
    free = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemFree"))
    found["free_mb"] = int(free.split()[1]) / 1024
    found["runnable"] = float(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return found


def touch(gib: float) -> float:
    """Write one byte into every page of `gib` GiB and give them back; returns the seconds it took."""
    begun, page = time.monotonic(), os.sysconf("SC_PAGE_SIZE")
    with mmap.mmap(-1, max(page, int(gib * (1 << 30)))) as room:
        room.madvise(mmap.MADV_NOHUGEPAGE)
        pages = np.frombuffer(room, np.uint8)
        pages[::page] = 1
        del pages
    return time.monotonic() - begun


def row(before: Counters, after: Counters, seconds: float) -> dict[str, float]:
    """Rates between two readings: cores by state, faults and MB a second; free memory and runnable processes now."""
    rate = {name: (after[name] - before[name]) / seconds for name in before}
    return {
        "user": rate["user"] + rate["nice"], "kernel": rate["system"] + rate["irq"] + rate["softirq"],
        "disk": rate["iowait"], "steal": rate["steal"], "faults": rate["faults"], "major": rate["major"],
        "read_mb": rate["read_kb"] / 1024, "free_gb": after["free_mb"] / 1024, "runnable": after["runnable"],
    }  # fmt: skip


def main() -> None:
    """Run the command and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--touch", type=float, default=0.0, help="GiB of memory to write and give back first")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between readings")
    parser.add_argument("--to", type=Path, help="write the rows as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.touch:
        print(f"touched {options.touch} GiB in {touch(options.touch):.1f} s", flush=True)
    begun, last = time.monotonic(), counters()
    marks: list[tuple[float, str]] = []
    rows: list[dict[str, float]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if line[7:10] == " s ":
                    marks.append((time.monotonic() - begun, line[10:60].strip()))

        reader = threading.Thread(target=read)
        reader.start()
        at = begun
        while process.poll() is None:
            time.sleep(options.every)
            now, here = time.monotonic(), counters()
            rows.append({"s": now - begun, **row(last, here, now - at)})
            at, last = now, here
        reader.join()
    print(
        f"{'s':>6} {'user':>5} {'kern':>5} {'disk':>5} {'steal':>5} {'faults':>8} {'major':>6} {'MB/s':>6} {'free':>6} {'run':>4}"
    )
    left = list(marks)
    for r in rows:
        while left and left[0][0] <= r["s"]:
            print(f"{'':6} {left[0][0]:6.1f} s {left.pop(0)[1]}")
        print(
            f"{r['s']:6.1f} {r['user']:5.1f} {r['kernel']:5.1f} {r['disk']:5.1f} {r['steal']:5.1f} {r['faults']:8.0f} "
            f"{r['major']:6.0f} {r['read_mb']:6.0f} {r['free_gb']:6.1f} {r['runnable']:4.0f}"
        )
    if options.to:
        options.to.write_text(json.dumps({"marks": marks, "rows": rows}))
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
