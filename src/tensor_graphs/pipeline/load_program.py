"""Loads saved programs with their optimization reports."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..backends.program import saved_program
from ..backends.program.buckets import FOLDER
from ..backends.program.program import Program
from ..backends.program.self_check import check_program
from ..errors import BadModelError
from ..report.omissions import OmittedWork
from ..report.report import Report
from ..writing.files import named_path

REPORT = "report.json"


def load_program(folder: str | Path, *, device: str | None = None, check: bool = False) -> Program:
    """A saved program, loaded without optimization. Calls execute its `program.py`: load only what you trust.

    The program's `report` is that of its optimization, None if the folder has none; a RuntimeWarning if that file is
    damaged, or says that a request to stop came before the program was verified. A program for a GPU requires a GPU of
    the same name; `device` ("cuda", "cuda:1") skips that check.

    Raises BadModelError if the folder is incomplete or was changed since it was saved, BadWeightsError for its weights,
    DeviceUnavailableError without a matching GPU.
    """
    found = saved_program.load_program(folder, device=device)
    found.report = _report(Path(folder) / REPORT)  # type: ignore[assignment]  # declared for programs of `optimize`
    if found.report is not None and is_unverified(found.report):
        warnings.warn("the program was never verified: its search was stopped before", RuntimeWarning, stacklevel=2)
    for name, plan in found.plans.items():
        plan.report = _report(Path(folder) / FOLDER / name / REPORT)
    if check:
        check_program(named_path(folder), found)
    return found


def is_unverified(report: Report) -> bool:
    """Whether a program with this report was to be verified, but a request to stop came before."""
    return not report.verification and OmittedWork.VERIFICATION.value in report.omitted


def _report(path: Path) -> Report | None:
    if not path.is_file():
        return None
    try:
        return Report.read(path)
    except BadModelError as error:
        warnings.warn(f"the report of a saved program is not read: {error}", RuntimeWarning, stacklevel=3)
        return None


__all__ = ["load_program"]
