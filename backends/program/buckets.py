"""Buckets of sizes: ranges of one free dimension, each with the plan that a program runs there.

The program's own plan is chosen at one size and holds for all sizes. A bucket may have another plan, chosen at a size
within the bucket.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ...plain import Malformed
from ..runtime.marshalling import Quick, Spec
from .direct_calls import DirectCalls

FOLDER = "plans"  # of a saved program: a folder for each plan, itself a saved program
_NAME = re.compile(r"[a-z0-9_]{1,40}")


class Bucket(NamedTuple):
    """Range of sizes `least` to `most` of a dimension, and the name of the plan that runs them ("": the plan of all
    sizes).
    """

    least: int
    most: int
    plan: str = ""


@dataclass(frozen=True)
class Buckets:
    """Buckets of a dimension, in ascending order and without gaps."""

    dimension: str
    rows: tuple[Bucket, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return [row.least for row in self.rows]

    def of(self, size: int) -> Bucket:
        """The bucket of a size within the range."""
        return self.rows[bisect_right(self._starts, size) - 1]

    @property
    def plans(self) -> list[str]:
        """Names of the plans other than that of all sizes, without repetition."""
        return [name for name in dict.fromkeys(row.plan for row in self.rows) if name]

    def to_json(self) -> dict[str, list[Bucket]]:
        """JSON form: dimension -> its buckets in order."""
        return {self.dimension: list(self.rows)}

    @staticmethod
    def of_json(
        record: Mapping[str, Sequence[tuple[int, int, str]]], sizes: Mapping[str, tuple[int, int, int]]
    ) -> Buckets | None:
        """Inverse of `to_json`, for a program with these ranges of sizes (name -> (least, most, size of the search));
        None for an empty record. Raises Malformed unless the buckets divide the range of one size without gaps, and all
        plans have plain names."""
        if not record:
            return None
        (dimension, found), *others = record.items()
        rows = tuple(Bucket(*row) for row in found)
        if others or dimension not in sizes or not rows:
            raise Malformed("buckets: there is one free size that is divided")
        low, high, _ = sizes[dimension]
        ends = [low - 1, *(row.most for row in rows)]
        if any(row.least != end + 1 or row.most < row.least for row, end in zip(rows, ends)) or ends[-1] != high:
            raise Malformed(f"buckets: they are not {low}..{high} without gaps")
        for row in rows:
            if row.plan and not _NAME.fullmatch(row.plan):
                raise Malformed(f"buckets: {row.plan[:40]!r} is no name of a plan")
        return Buckets(dimension, rows)


class BucketForm(Protocol):
    """Executor of the calls in a bucket: a program, or the caller's own function."""

    def quick(self, specs: Sequence[Spec]) -> Quick | None:
        """Fast marshalling function for inputs of types `specs` (`Marshalling.quick`); None if there is none."""
        ...

    def called(self, taken: Sequence[Any]) -> Sequence[Any]:
        """The results of a call. `taken`: the arguments that the function of `quick` made of the inputs."""
        ...


class CallsAtSizes(NamedTuple):
    """Prepared calls at one choice of sizes.

    `specs`: types of the inputs at these sizes. `form` runs the calls whose arguments `quick` accepts; `program` runs
    all others. `direct`: the function that makes calls without the emitted program's code, once there is one.
    """

    specs: Sequence[Spec]
    quick: Quick | None
    form: BucketForm
    program: Any
    direct: DirectCalls


__all__ = ["FOLDER", "Bucket", "BucketForm", "Buckets", "CallsAtSizes"]
