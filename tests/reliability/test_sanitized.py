"""Generated C kernels under AddressSanitizer and UndefinedBehaviorSanitizer: the short form of `python -m
tests.fuzz.sanitized`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tensor_graphs.egraph.types.dims import concrete

from ..fuzz.sanitized import kernels_of, reports, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")


def test_kernels_stay_within_their_memory_and_a_planted_fault_is_found() -> None:
    found = [kernel for seed in range(6) for kernel in kernels_of(seed, 3)]
    assert len(found) > 4
    last = found[-1]
    result = next(iter(s.buffer for s in last.kernel.stores))
    past = math.prod(concrete(last.kernel.buffers[result].shape))
    wrong = last.text.rstrip().removesuffix("}") + f"    {result}[{past}] = 0;\n}}"
    planted = replace(last, name="planted", text=wrong.replace(last.name, "planted"))
    message = reports([*found, planted, replace(last, name="after", text=last.text.replace(last.name, "after"))])
    assert list(message) == ["planted"], message
    assert "AddressSanitizer" in message["planted"] or "runtime error" in message["planted"]
