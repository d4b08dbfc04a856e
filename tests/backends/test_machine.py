"""Sizes of GPUs: from keys, by compute capability, and as schedules use them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensor_graphs.backends.machine import REFERENCE, SIZES, of_facts, of_key, shared_per_block, using_machine
from tensor_graphs.backends.triton.schedules.legality import each


def test_schedules_count_threads_by_the_machines_warps() -> None:
    assert each(1024, 4) == 8 and REFERENCE.warps == 64
    with using_machine(wide := replace(REFERENCE, warp=64)):
        assert each(1024, 4) == 4 and wide.warps == 32


@pytest.mark.parametrize("capability", SIZES)
def test_a_machine_of_a_key_has_the_sizes_of_its_capability(capability: int) -> None:
    found = of_key(f"gpu:Some GPU:sm{capability}:multiprocessors=80")
    assert (found.capability, found.multiprocessors, found.warp) == (capability, 80, 32)
    assert found.shared_per_block == shared_per_block(capability) == SIZES[capability]["shared_per_block"]


def test_an_unknown_capability_has_the_least_shared_memory() -> None:
    assert shared_per_block(75) == min(sizes["shared_per_block"] for sizes in SIZES.values())


def test_a_machine_has_the_properties_that_its_driver_reports() -> None:
    facts = {
        "name": "Some GPU", "capability": 100, "multiprocessors": 8, "shared_per_block": 1 << 16, "threads": 1024,
        "shared_per_multiprocessor": 1 << 17, "registers": 1 << 15, "warp": 64, "bytes_per_us": 1e6, "cache_bytes": 1 << 20,
    }  # fmt: skip
    found = of_facts(facts)
    assert (found.warp, found.warps, found.registers, found.bytes_per_us) == (64, 16, 1 << 15, 0.9e6)
