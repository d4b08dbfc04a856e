"""Reads reports of older versions: today's names of renamed fields, stages and background activities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = {"remembered": "from_plan_cache", "memory": "plan_cache_notes", "cut": "omitted"}  # old name -> name
STAGES = {
    "glue": "join blocks", "keep": "store plan", "recall": "plan cache", "ahead": "overlapped tuning",
    "start": "start workers", "end": "stop workers",
}  # fmt: skip
CLOCKS = {"ahead": "overlapped tuning", "readers": "lowering"}


def renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a report, `data`, with today's names of fields, stages (keys of `seconds`) and rows of the
    timeline."""
    found = {FIELDS.get(name, name): value for name, value in data.items()}
    for name, of in (("seconds", _stage), ("timeline", _row)):
        if isinstance(rows := found.get(name), Mapping):
            found[name] = {of(key): value for key, value in rows.items()}
    return found


def _stage(name: str) -> str:
    return STAGES.get(name, name)


def _row(name: str) -> str:
    """Today's name of a row of the timeline, "CLOCK: ACTIVITY"."""
    clock, _, activity = name.partition(": ")
    return f"{CLOCKS.get(clock, clock)}: {_stage(activity) if clock == 'stage' else activity}"


__all__ = ["FIELDS", "renamed"]
