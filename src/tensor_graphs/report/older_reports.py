"""Reads reports of older versions: today's names of renamed fields, stages and background activities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FIELDS = {"remembered": "from_plan_cache", "memory": "plan_cache_notes", "cut": "omitted"}  # old name -> name
STAGES = {
    "glue": "join blocks", "keep": "store plan", "recall": "plan cache", "ahead": "overlapped tuning",
    "start": "start workers", "end": "stop workers",
}  # fmt: skip
ATTEMPT = {"said": "message"}  # old name -> name of a field of a plan that failed verification
CLOCKS = {"ahead": "overlapped tuning", "readers": "lowering"}


def renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a report, `data`, with today's names of fields, stages (keys of `seconds`), rows of the
    timeline and fields of plans that failed verification."""
    found = {FIELDS.get(name, name): value for name, value in data.items()}
    for name, of in (("seconds", _stage), ("timeline", _row)):
        if isinstance(rows := found.get(name), Mapping):
            found[name] = {of(key): value for key, value in rows.items()}
    verdict = found.get("verification")
    if isinstance(verdict, Mapping) and isinstance(failed := verdict.get("failed"), Sequence):
        found["verification"] = {**verdict, "failed": [_attempt(one) for one in failed]}
    return found


def _attempt(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    return {ATTEMPT.get(name, name): value for name, value in values.items()}


def _stage(name: str) -> str:
    return STAGES.get(name, name)


def _row(name: str) -> str:
    """Today's name of a row of the timeline, "CLOCK: ACTIVITY"."""
    clock, _, activity = name.partition(": ")
    return f"{CLOCKS.get(clock, clock)}: {_stage(activity) if clock == 'stage' else activity}"


__all__ = ["FIELDS", "renamed"]
