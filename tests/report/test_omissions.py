"""Omitted work: texts in reports, and what is read from them."""

from __future__ import annotations

import pytest

from tensor_graphs.report.omissions import UNREWRITTEN, Omission, OmittedWork


@pytest.mark.parametrize("detail", ["", "2 of 3"])
@pytest.mark.parametrize("work", OmittedWork)
def test_texts_of_reports_are_read_back(work: OmittedWork, detail: str) -> None:
    assert Omission.of(str(Omission(work, detail))) == Omission(work, detail)


def test_what_a_later_call_completes_and_what_was_not_searched() -> None:
    texts = ["verification on 2 of 3 inputs", "timing of the whole program", "measuring", "a new kind of work"]
    found = [Omission.of(text) for text in texts]
    assert [bool(o and o.can_be_completed) for o in found] == [True, True, False, False]
    assert not Omission(OmittedWork.TIMING, ": too little memory is available").can_be_completed
    assert UNREWRITTEN.unsearched == "the rewritten graph" and not Omission(OmittedWork.TIMING).unsearched
    assert Omission(OmittedWork.REWRITING, "1 of 2 blocks").unsearched == "the fully rewritten graph"
