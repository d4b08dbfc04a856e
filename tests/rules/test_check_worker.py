"""Rules judged side by side: the same verdicts in the same order, whatever happens to the processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_graphs.rules.check.check import Verdict
from tensor_graphs.rules.files import check_file, rule_file
from tensor_graphs.rules.files import worker as check_worker
from tensor_graphs.rules.files.worker import RuleCheckPool

TEXT = """
(matmul 0 ?a (matmul 0 ?b ?c))=>(matmul 0 (matmul 0 ?a ?b) ?c)
transpose(transpose(x))==x
(relu ?a)=>?a

add: x + y => y + x
wrong: x - y => y - x
(relu ?a)=>?a
(nothing ?a)=>?a
"""


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RuleCheckPool]]:
    """Processes for few rules too; those that were made."""
    made: list[RuleCheckPool] = []
    first = RuleCheckPool.__init__

    def init(self: RuleCheckPool, *given: int) -> None:
        first(self, *given)
        made.append(self)

    monkeypatch.setattr(check_file, "MANY", 2)
    monkeypatch.setattr(RuleCheckPool, "__init__", init)
    yield made
    assert all(p.poll() is not None for judges in made for p in judges.processes)


def test_verdicts_are_the_same(many: list[RuleCheckPool]) -> None:
    rules = rule_file.read(TEXT)
    alone, together = (list(check_file.check_all(rules, processes=n)) for n in (1, 2))
    assert together == alone and len(together) == 7
    assert [c.verdict.status for c in alone] == [
        "proved",
        "proved",
        "refuted",
        "proved",
        "refuted",
        "refuted",
        "unknown",
    ]
    assert len(many) == 1 and 1 <= len(many[0].processes) <= 2


def test_stopping_ends_the_processes(many: list[RuleCheckPool]) -> None:
    asked = iter([False, True] + [True] * 99)
    found = list(check_file.check_all(rule_file.read(TEXT), processes=2, stop=lambda: next(asked)))
    assert len(found) <= 1 and len(many) == 1


def test_a_process_that_dies_costs_nothing(many: list[RuleCheckPool], monkeypatch: pytest.MonkeyPatch) -> None:
    start = RuleCheckPool._process

    def dying(self: RuleCheckPool) -> object:
        process = start(self)
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(RuleCheckPool, "_process", dying)
    rules = rule_file.read(TEXT)[:3]
    assert list(check_file.check_all(rules, processes=2)) == list(check_file.check_all(rules))


def test_a_rule_that_takes_too_long_is_unknown(many: list[RuleCheckPool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is killed; nothing is checked in this process instead."""
    monkeypatch.setattr(check_worker, "RULE_S", 0.01)
    monkeypatch.setattr(check_worker, "verdict", lambda *_, **__: pytest.fail("checked in this process"))
    found = list(check_file.check_all(rule_file.read(TEXT)[:3], processes=2))
    assert {(c.verdict.status, c.verdict.detail) for c in found} == {("unknown", "the check took more than 0.01 s")}


def test_a_rule_that_crashes_its_process_is_unknown(many: list[RuleCheckPool], monkeypatch: pytest.MonkeyPatch) -> None:
    """It might crash this process, too."""

    def crashing(self: RuleCheckPool) -> object:
        process = subprocess.Popen(
            [sys.executable, "-c", "input(); exit(7)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    monkeypatch.setattr(RuleCheckPool, "_process", crashing)
    monkeypatch.setattr(check_worker, "verdict", lambda *_, **__: pytest.fail("checked in this process"))
    found = list(check_file.check_all(rule_file.read(TEXT)[:3], processes=2))
    assert all(c.verdict.status == "unknown" and "ended with code 7" in c.verdict.detail for c in found)


def test_a_rule_that_takes_too_much_memory_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker answers and goes on."""
    answers = iter([MemoryError(), Verdict("proved", "")])

    def verdict(*_: object, **__: object) -> Verdict:
        if isinstance(found := next(answers), Exception):
            raise found
        return found

    asked = json.dumps({"text": "(relu ?a)=>?a", "line": 1, "seed": 0, "samples": 1}) + "\n"
    monkeypatch.setattr(check_worker, "limit_own_memory", lambda: None)
    monkeypatch.setattr(check_worker, "verdict", verdict)
    monkeypatch.setattr("sys.stdin", io.StringIO(asked * 2))
    check_worker.serve()
    full, proved = map(json.loads, capsys.readouterr().out.splitlines())
    assert (full["status"], proved["status"]) == ("unknown", "proved") and check_worker.FULL in full["detail"]


def test_modules_in_the_current_folder_are_not_imported(
    many: list[RuleCheckPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a rule file from elsewhere may hold a `json.py`, too."""
    mark = tmp_path / "mark"
    (tmp_path / "json.py").write_text(f"open({str(mark)!r}, 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    rules = rule_file.read(TEXT)[:3]
    assert len(list(check_file.check_all(rules, processes=2))) == 3 and many[0].processes
    assert not mark.exists()
