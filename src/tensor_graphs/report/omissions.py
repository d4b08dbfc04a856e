"""Work that a search omits for lack of time or memory or after a request to stop: its kinds, and its texts in
reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OmittedWork(Enum):
    """A kind of work that may be omitted; the value is the begin of its text in `Report.omitted`."""

    TESTING_RULES = "tests of the caller's rules: "  # how many
    REWRITING = "rewriting of "  # of some blocks
    MATCHING = "kernels of "  # of a part of the e-graph
    GENERATING = "some of the kernels that could be generated"
    MEASURING = "measuring"
    UNUSABLE = "usable kernels of "  # a backend whose compiler did not end in time, or that cannot be imported
    TIMING_PLANS = "timing plans as programs"
    TIMING_OVERLAPS = "timing overlapping kernels"
    TIMING_SCHEDULES = "timing schedules in the program"
    TIMING = "timing of the whole program"
    OTHER_PLANS = "other plans within tolerance"
    VERIFICATION = "verification"
    SIZE_PLAN = "a plan for "  # a range of sizes
    EXACT_INPUTS = "comparison with the bits of the caller's function on further inputs"


@dataclass(frozen=True)
class Omission:
    """Omitted work: its kind, and the rest of its text in `Report.omitted`, such as the number of inputs."""

    work: OmittedWork
    detail: str = ""

    @staticmethod
    def of(text: str) -> Omission | None:
        """The omission of an entry of `Report.omitted`, also of an older version; None for an unknown text."""
        kinds = [work for work in OmittedWork if text.startswith(work.value)]
        work = max(kinds, key=lambda one: len(one.value), default=None)
        return work and Omission(work, text.removeprefix(work.value))

    def __str__(self) -> str:
        return self.work.value + self.detail

    @property
    def unsearched(self) -> str:
        """The part of the e-graph whose kernels are unknown because of this omission; "" if there is none."""
        return {OmittedWork.MATCHING: self.detail, OmittedWork.REWRITING: "the fully rewritten graph"}.get(
            self.work, ""
        )

    @property
    def can_be_completed(self) -> bool:
        """Whether a call that finds the plan in the plan cache makes up for it: verification, and timing of the whole
        program for which there was no time (too little memory is no such reason)."""
        return self.work is OmittedWork.VERIFICATION or self == Omission(OmittedWork.TIMING)


UNREWRITTEN = Omission(OmittedWork.MATCHING, "the rewritten graph")

__all__ = ["UNREWRITTEN", "Omission", "OmittedWork"]
