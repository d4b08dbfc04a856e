"""Represents buckets of sizes: ranges of one free dimension, each with the plan (choice of kernels) that a program runs
there.

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
from .launch.direct_calls import DirectCalls

FOLDER = "plans"  # of a saved program: a folder for each plan, itself a saved program
_NAME = re.compile(r"[a-z0-9_]{1,40}")


class Bucket(NamedTuple):
    """Range of sizes `least` to `most` of a free dimension, and the name of the plan (choice of kernels) that a program
    runs at them; "" for the plan that serves all sizes."""

    least: int
    most: int
    plan: str = ""


@dataclass(frozen=True)
class Buckets:
    """The buckets (ranges of sizes) of one free dimension, in ascending order and without gaps."""

    dimension: str
    rows: tuple[Bucket, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return [row.least for row in self.rows]

    def of(self, size: int) -> Bucket:
        """The bucket that contains `size`, which must be in the dimension's range."""
        return self.rows[bisect_right(self._starts, size) - 1]

    @property
    def plans(self) -> list[str]:
        """Names of the plans that buckets have of their own, each once; the plan that serves all sizes is left out."""
        return [name for name in dict.fromkeys(row.plan for row in self.rows) if name]

    def to_json(self) -> dict[str, list[Bucket]]:
        """The buckets as JSON data: {dimension: its buckets in order}."""
        return {self.dimension: list(self.rows)}

    @staticmethod
    def of_json(
        record: Mapping[str, Sequence[tuple[int, int, str]]], sizes: Mapping[str, tuple[int, int, int]]
    ) -> Buckets | None:
        """The buckets that `to_json` wrote as `record`, for a program with these ranges of `sizes` (name -> (least,
        most, size of the search)); None for an empty record.

        Raises Malformed unless the buckets divide the range of one size without gaps, and all plans have plain names.
        """
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
    """Protocol of the callables that run at the sizes of a bucket (range of sizes): a program, or the caller's own
    function."""

    def quick(self, specs: Sequence[Spec]) -> Quick | None:
        """Function that converts inputs of the types `specs` to arguments quickly (`Marshalling.quick`); None if there
        is none."""
        ...

    def called(self, taken: Sequence[Any]) -> Sequence[Any]:
        """Make a call; returns its results. `taken`: the arguments that the function of `quick` made of the inputs."""
        ...


class CallsAtSizes(NamedTuple):
    """The functions that make the calls of a program at one choice of sizes.

    `specs`: types of the inputs at these sizes. `form` (what runs in place of the program, such as the caller's
    function) makes the calls whose arguments `quick` accepts; `program` makes all others. `direct`: the function that
    makes calls without the emitted program's code, once there is one.
    """

    specs: Sequence[Spec]
    quick: Quick | None
    form: BucketForm
    program: Any
    direct: DirectCalls


__all__ = ["FOLDER", "Bucket", "BucketForm", "Buckets", "CallsAtSizes"]
