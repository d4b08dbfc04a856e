"""Holds the expected times of the work that follows a search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ExpectedTimes:
    """Expected seconds of the work that follows a search, which the search leaves of the budget (`reserves.py`)."""

    verification_s: float = 0.0  # verification on one input
    verified_inputs: int = 3  # inputs that verification wants
    input_s: float = 0.0  # verification on a further input
    compiling_s: float = 0.0  # compiling the program on the host
    binding_s: float = 0.0  # copying those of the program's weights to the device that are not there yet
    weight_bytes: int = 0  # of all weights as the graph stores them, wherever they are
    ending_s: float = 0.0  # the end of the call, which optional work leaves
    repeats: bool = True  # whether parts of the model repeat, so that time for schedules in the program pays


__all__ = ["ExpectedTimes"]
