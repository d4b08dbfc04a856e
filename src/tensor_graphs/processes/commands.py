"""Runs a command and ends all of its processes if it takes too long. Emitted programs contain copies of these
functions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def command_output(command: list[str], seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command. Raises OSError if it cannot be started, subprocess.CalledProcessError if it fails,
    subprocess.TimeoutExpired after `seconds`; then, and after Ctrl-C, no process of it is left."""
    from contextlib import suppress

    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment
    ) as run:
        try:
            output, errors = run.communicate(timeout=seconds)
        except BaseException:
            for pid in (*descendants(run.pid), run.pid):
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, 9)
            raise
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, command, output, errors)
    return str(output)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have started; on Linux, else none."""
    from contextlib import suppress

    found = []
    with suppress(OSError):  # the process has ended meanwhile
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, listed.read_text().split()):
                found += [child, *descendants(child)]
    return found


__all__ = ["command_output", "descendants"]
