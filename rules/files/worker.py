"""Worker processes that check the rules of a large file in parallel.

A worker reads one rule per line as JSON and answers each with a verdict (proved, tested, refuted or unknown). It is
started with `python -m` in its own session, so that Ctrl-C reaches only the parent and the main script is not executed
again. If a worker is killed, the parent checks its rule itself. A rule that takes longer than RULE_S, or more memory
than a worker may have, or that crashes a worker, is "unknown".
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from ...processes.memory_limits import limit_own_memory, limited_environment
from ...processes.spawn import start_line_worker
from ..check.check import Verdict
from .rule_file import Line, read, verdict

RULE_S = 120.0  # deadline for one rule
FULL = "memory is limited by the setting worker_memory"


class RuleCheckPool:
    """Pool of `count` worker processes that check rules; a context manager that kills the workers on exit.

    `seed`, `samples`: of the random tests of each rule.
    """

    def __init__(self, count: int, seed: int, samples: int) -> None:
        self.seed, self.samples, self.limited = seed, samples, limited_environment(count)
        self.threads = ThreadPoolExecutor(count)
        self.mine = threading.local()
        self.processes: list[subprocess.Popen[str]] = []
        self.closed = False

    def __enter__(self) -> RuleCheckPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            process.kill()
        self.threads.shutdown()
        for process in self.processes:
            process.communicate()

    def all(self, rules: Sequence[Line]) -> list[Future[Verdict]]:
        """Futures of the verdicts (proved, tested, refuted or unknown), in the order of the rules."""
        return [self.threads.submit(self.one, rule) for rule in rules]

    def one(self, rule: Line) -> Verdict:
        """The verdict (proved, tested, refuted or unknown) on one rule, from this thread's worker process, or computed
        here if the worker is killed."""
        late = threading.Event()
        asked = {"text": rule.text, "line": rule.line, "seed": self.seed, "samples": self.samples}
        try:
            process = self._process()
        except OSError:
            return verdict(rule, seed=self.seed, samples=self.samples)

        def end() -> None:
            late.set()
            process.kill()

        try:
            timer = threading.Timer(RULE_S, end)
            timer.start()
            try:
                found = _answer(process, asked)
            finally:
                timer.cancel()
            return Verdict(found["status"], found["detail"], found["counterexample"])
        except (OSError, ValueError, KeyError, TypeError):
            if self.closed:
                return Verdict("unknown", "not judged")
            if late.is_set():
                process.wait()
                return Verdict("unknown", f"the check took more than {RULE_S:g} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if (code := process.poll()) not in (None, -signal.SIGKILL):  # it would fail in this process, too
                return Verdict("unknown", f"the checking process ended with code {code}; {FULL}")
            return verdict(rule, seed=self.seed, samples=self.samples)

    def _process(self) -> subprocess.Popen[str]:
        found: subprocess.Popen[str] | None = getattr(self.mine, "process", None)
        if found is None or found.poll() is not None:
            found = start_line_worker(__name__, environment=self.limited)
            self.mine.process = found
            self.processes.append(found)
        return found


def _answer(process: subprocess.Popen[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's answer to a request. Raises ValueError if the worker has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


def serve() -> None:
    """Worker main loop: answers requests from standard input until it is closed."""
    limit_own_memory()
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            (rule,) = read("\n" * (asked["line"] - 1) + asked["text"], pairs="\n" in asked["text"])
            found = verdict(rule, seed=asked["seed"], samples=asked["samples"])
        except MemoryError:
            found = Verdict("unknown", f"memory ran out; {FULL}")
        answer = {"status": found.status, "detail": found.detail, "counterexample": found.counterexample}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()

__all__ = ["RuleCheckPool", "serve"]
