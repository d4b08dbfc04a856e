"""Rules judged side by side, in processes of their own: for files of many rules.

A process reads one rule a line, as JSON, and answers each with a verdict. It is started as `python -m`, in a session of its own:
Ctrl-C belongs to the parent, and a script without a guard is not run again. A process that dies costs nothing: its rule is judged
here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from .check import Verdict
from .check_file import Line, read, verdict


class Judges:
    """So many processes that judge rules; verdicts come in the order of the rules."""

    def __init__(self, count: int, seed: int, samples: int) -> None:
        self.seed, self.samples = seed, samples
        self.threads = ThreadPoolExecutor(count)
        self.mine = threading.local()
        self.processes: list[subprocess.Popen[str]] = []
        self.closed = False

    def __enter__(self) -> Judges:
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
        """The verdicts to come."""
        return [self.threads.submit(self.one, rule) for rule in rules]

    def one(self, rule: Line) -> Verdict:
        """A verdict, from this thread's process while there is one."""
        asked = {"text": rule.text, "line": rule.line, "seed": self.seed, "samples": self.samples}
        try:
            process = self._process()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            return Verdict(found["status"], found["detail"], found["counterexample"])
        except (OSError, ValueError, KeyError, TypeError):
            if self.closed:
                return Verdict("unknown", "not judged")
            return verdict(rule, seed=self.seed, samples=self.samples)

    def _process(self) -> subprocess.Popen[str]:
        found: subprocess.Popen[str] | None = getattr(self.mine, "process", None)
        if found is None:
            found = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
            self.mine.process = found
            self.processes.append(found)
        return found


def serve() -> None:
    """Answer until the other side is gone."""
    for line in sys.stdin:
        asked = json.loads(line)
        (rule,) = read("\n" * (asked["line"] - 1) + asked["text"], pairs="\n" in asked["text"])
        found = verdict(rule, seed=asked["seed"], samples=asked["samples"])
        answer = {"status": found.status, "detail": found.detail, "counterexample": found.counterexample}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()

__all__ = ["Judges", "serve"]
