"""Defines the reports of the cost store: small dataclasses that can be shown as JSON, text and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class CostStoreWarning(UserWarning):
    """Warning: the store works with restrictions, because it is not durable, was rebuilt, or refused part of its
    data."""


def plain(value: Any) -> Any:
    """`value` as JSON-compatible data: non-finite numbers become None, tuples lists, other objects texts."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def shown(value: Any) -> str:
    """`value` in one line without control characters: stored texts may be untrusted."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{shown(name)}: {shown(part)}" for name, part in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(part) for part in value) or "none"
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in str(value)
    )


@dataclass(frozen=True, repr=False)
class StoreReport:
    """Base of the reports: one line per field, nested reports as tables."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return dict(plain(asdict(self)))

    def lines(self) -> list[tuple[str, str]]:
        """(title, text) of every field, in order."""
        return [(name.replace("_", " "), shown(value)) for name, value in vars(self).items()]

    def __repr__(self) -> str:
        width = max(len(title) for title, _ in self.lines())
        return "\n".join([type(self).__name__, *(f"  {title:<{width}}  {text}" for title, text in self.lines())])

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in self.lines())
        return f"<table><caption>{type(self).__name__}</caption>{cells}</table>"


@dataclass(frozen=True, repr=False)
class Ack(StoreReport):
    """Result of `Store.add`: number of rows kept, rows refused by reason, and whether the kept ones are on disk."""

    rows: int
    skipped: dict[str, int] = field(default_factory=dict)
    durable: bool = True
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class MergeReport(StoreReport):
    """Result of `Store.merge`: number of shards copied and already present, refused shards with the reason."""

    copied: int
    present: int
    bad_shards: dict[str, str] = field(default_factory=dict)
    skipped_rows: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class CompactReport(StoreReport):
    """Result of `Store.compact`: shards and rows before and after (duplicates are dropped)."""

    shards_before: int
    shards_after: int
    rows_before: int
    rows_after: int


@dataclass(frozen=True, repr=False)
class CheckReport(StoreReport):
    """Result of `Store.check`: shards read and verified, and refused rows and shards with reasons."""

    root: str
    shards: int
    rows: int
    bad_shards: dict[str, str] = field(default_factory=dict)  # found in this check, by name
    quarantined: dict[str, int] = field(default_factory=dict)  # files set aside so far, by reason
    skipped_rows: dict[str, int] = field(default_factory=dict)
    temporaries_removed: int = 0
    newer_formats: tuple[str, ...] = ()
    cache: str = "ok"

    @property
    def ok(self) -> bool:
        """Whether nothing was refused and the cache works."""
        return not (self.bad_shards or self.quarantined or self.skipped_rows) and self.cache == "ok"

    def to_json(self) -> dict[str, Any]:
        """The fields of the report and `ok`, as JSON values."""
        return {"ok": self.ok, **super().to_json()}


@dataclass(frozen=True, repr=False)
class FamilyStats(StoreReport):
    """One kernel family: number of keys, and errors |log(predicted / measured)| of held-out predictions."""

    family: str
    backend: str
    keys: int
    held_out: int
    median_error: float
    p90_error: float

    def lines(self) -> list[tuple[str, str]]:
        """(title, text) of one line; errors as factors instead of logarithms."""
        title, keys = shown(f"{self.family} on {self.backend}"), f"{self.keys} key{'s' * (self.keys != 1)}"
        if not self.held_out:
            return [(title, keys)]
        factors = f"off by ×{math.exp(self.median_error):.2f} (median), ×{math.exp(self.p90_error):.2f} (p90)"
        return [(title, f"{keys}, {factors} over {self.held_out} held out")]


@dataclass(frozen=True, repr=False)
class StoreStats(StoreReport):
    """Result of `Store.stats`: contents of the store, and accuracy of its predictions."""

    root: str
    snapshot_id: str
    shards: int
    rows: dict[str, int]
    keys: int
    devices: dict[str, int]
    rooflines: dict[str, dict[str, float]]
    not_durable: int
    families: tuple[FamilyStats, ...] = ()

    def lines(self) -> list[tuple[str, str]]:
        """(title, text) of each field, then of each family."""
        own = [line for line in super().lines() if line[0] != "families"]
        return own + [line for family in self.families for line in family.lines()]
