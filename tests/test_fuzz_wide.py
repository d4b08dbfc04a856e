"""Random graphs over the whole op table and all dtypes (tests/fuzz), a few of each kind.

`python -m tests.fuzz CHECK --seconds 600 --seed N` goes on for as long as one likes.
"""

from __future__ import annotations

import pytest

from .fuzz.__main__ import CHECKS, attempted
from .fuzz.graphs import Grower

#: check -> graphs that are tried, and their steps.
COUNTS = {
    "simplified": (60, 8),
    "classes": (6, 6),
    "exact": (4, 6),
    "plans": (3, 6),
    "optimized": (3, 6),
    "sizes": (8, 7),
    "specified": (8, 7),
}


@pytest.mark.parametrize("check", COUNTS)
def test_random_graphs(check: str) -> None:
    pytest.importorskip("torch")
    run, kinds = CHECKS[check]
    count, steps = COUNTS[check]
    for seed in range(count):
        one = Grower(seed, kinds).graph(steps)
        said = attempted(run, one, seed)
        assert not said, f"seed {seed}\n{one.text()}\n{said}"
