"""Obtains proposals: a program of the user is given briefs (descriptions of slow regions of a plan) and writes kernels
for them; each goes through the checks of all user kernels.

What the program prints is untrusted: it is executed in the child process of the checks, with the user's rights, and in
this process only after it has passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..backends.admission.use import verdicts_of
from ..backends.registry import backend
from ..backends.tuning.measure_cpu import CpuMeasurer
from ..backends.tuning.measure_gpu import GpuMeasurer
from ..backends.tuning.measurement import SinkBase, Timing
from ..backends.user.files import KernelFile, kernel_file
from ..backends.user.templates import UserKernel
from ..egraph.ir.graph import Graph
from ..errors import TensorGraphsError, UsageError
from ..explorer.saturate import saturate
from ..extract.model.kernel import Call, Template
from ..writing.files import write_text
from .briefs import Brief

MAX_PROPOSAL_BYTES = 1 << 20  # bytes of a proposal
POLL_S = 0.05
FASTER = 0.98  # a proposal is accepted below this multiple of today's time
MATCHING_S = 10.0  # budget for rewriting a region
Measure = Callable[[Template, Call], "float | None"]


@dataclass(frozen=True)
class Proposal:
    """The outcome for one brief.

    `status`: accepted or refused; `reason`: why. Times in µs of one call, measured side by side (None: not measured);
    `gain_us`: what the model would gain, over all equal regions.
    """

    number: int
    status: str
    reason: str
    file: str = ""
    kernel: str = ""
    today_us: float | None = None
    proposal_us: float | None = None
    gain_us: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        times = (
            "" if self.proposal_us is None else f" ({self.today_us:.2f} µs today, {self.proposal_us:.2f} µs proposed)"
        )
        return f"brief {self.number}: {self.status}: {self.reason}{times}" + (f"\n  {self.file}" if self.file else "")

    def to_json(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        return asdict(self)


class _Refused(Exception):
    """Raised for a proposal that is not accepted; the text says why."""


def propose(
    briefs: Sequence[Brief], command: str, folder: Path, *, seconds: float = 120.0, stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda message: None,
) -> list[Proposal]:  # fmt: skip
    """Outcome for each brief of running a command with the brief on its standard input, and checking the kernels that
    it prints.

    Accepted kernels pass all checks, compute the brief's reference (up to rewriting) and are faster than today's
    kernels. `folder` receives `proposal-N.py`, refused ones included. `seconds`: limit of one command, which is then
    killed with its children. `stopped`: polled; ends the work. Raises UsageError for an empty command.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command for proposals is malformed: {error}", where=command[:200]) from None
    if not words:
        raise UsageError("an empty command for proposals", hint='--propose "COMMAND ARGUMENTS"')
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for brief in briefs:
        if stopped():
            break
        say(f"brief {brief.number}")
        began = time.monotonic()
        try:
            one = _proposal(brief, words, folder / f"proposal-{brief.number}.py", seconds, stopped)
        except _Refused as refused:
            one = Proposal(brief.number, "refused", str(refused))
        except TensorGraphsError as error:
            one = Proposal(brief.number, "refused", error.message)
        found.append(replace(one, seconds=time.monotonic() - began))
    return found


def _proposal(brief: Brief, words: Sequence[str], path: Path, seconds: float, stopped: Callable[[], bool]) -> Proposal:
    write_text(path, _code(_printed(words, brief.markdown(), seconds, stopped)))
    file = kernel_file(path)
    verdicts = verdicts_of(file)
    if bad := [v for v in verdicts if not v.admitted]:
        raise _Refused("; ".join(map(str, bad)) + f" ({path})")
    calls = list(_matches(brief, file))
    if not calls:
        raise _Refused(f"no kernel of the file computes {brief.region.pattern} at these types ({path})")
    with _measuring(brief) as measure:
        steps = [measure(s.template, s.call) or s.cost.us for s in brief.region.steps]
        today = sum(steps)
        timed = [(us, t) for t, c in calls if (us := measure(t, c)) is not None]
    if not timed:
        raise _Refused(f"the kernel could not be measured ({path})")
    us, template = min(timed, key=lambda pair: pair[0])
    status, reason = (
        ("accepted", f"{today / us:.2f} times as fast") if us < FASTER * today else ("refused", "not faster")
    )
    gain = brief.region.count * (today - us) if status == "accepted" else 0.0
    return Proposal(brief.number, status, reason, str(path), template.name, today, us, gain)


def _printed(words: Sequence[str], brief: str, seconds: float, stopped: Callable[[], bool]) -> str:
    """Standard output of a command that is given a brief. Raises _Refused if it fails, takes too long or prints too
    much."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
        given.write(brief.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(words, stdin=given, stdout=printed, start_new_session=True)
        except OSError as error:
            raise UsageError(f"the command cannot be started: {error}", where=words[0]) from None
        until = time.monotonic() + seconds
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    raise _Refused(f"the command took longer than {seconds:g} s")
                if os.fstat(printed.fileno()).st_size > MAX_PROPOSAL_BYTES:
                    raise _Refused(f"the command printed more than {MAX_PROPOSAL_BYTES} bytes")
                if stopped():
                    raise _Refused("stopped on request")
                time.sleep(POLL_S)
        finally:
            with contextlib.suppress(OSError):  # its children, too, also after it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise _Refused(f"the command ended with code {process.returncode}")
        printed.seek(0)
        text = printed.read(MAX_PROPOSAL_BYTES + 1)
    if not text.strip() or len(text) > MAX_PROPOSAL_BYTES:
        raise _Refused(
            "the command printed nothing" if not text.strip() else f"it printed more than {MAX_PROPOSAL_BYTES} bytes"
        )
    return text.decode("utf-8", errors="replace")


def _code(text: str) -> str:
    """The file in a text: its first fenced block of code, else all of it."""
    fenced = re.search(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return fenced[1] if fenced else text


def _matches(brief: Brief, file: KernelFile) -> Iterator[tuple[UserKernel, Call]]:
    """(template, call) of each kernel of a file that computes a region as a whole, after rewriting."""
    graph = Graph.of(list(brief.region.terms), name="region")
    on_gpu = backend(brief.region.steps[0].template.backend).device.on_gpu
    explorer = saturate(graph, kernels=[file.path], budget=MATCHING_S, backend="gpu" if on_gpu else "auto")
    graphs = explorer.choice.hypergraph
    roots = {r.cls for r in graphs.roots}
    for c in graphs.candidates:
        own = isinstance(c.template, UserKernel) and c.template.file.digest == file.digest
        if own and {o.cls for o in c.outputs} >= roots and all(v.cls in graphs.given for _, v in c.inputs):
            yield from ((c.template, call) for call in _scheduled(c.template, c.call))  # type: ignore[misc]


def _scheduled(template: Template, call: Call) -> list[Call]:
    return [call] if template.space is None else [replace(call, schedule=s) for s in template.space(call)]


@contextlib.contextmanager
def _measuring(brief: Brief) -> Iterator[Measure]:
    """A function that measures a call in a child process: median time in µs, None for a failure."""
    on_gpu = backend(brief.region.steps[0].template.backend).measured == "gpu"
    with (GpuMeasurer if on_gpu else CpuMeasurer)(SinkBase()) as measurer:  # type: ignore[arg-type]

        def measure(template: Template, call: Call) -> float | None:
            found = measurer.time(template, call)
            return found.median if isinstance(found, Timing) else None

        yield measure


__all__ = ["Proposal", "propose"]
