"""The decision between a program and eager calls, with given times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from tensor_graphs.torch_compile import judge


@pytest.mark.parametrize(
    ("device", "single", "queued", "wins"),
    [
        ("cpu", (2.0, 1.0), (0.0, 9.0), True),  # queued calls are a matter of GPUs
        ("cuda", (2.0, 1.0), (16.0, 8.0), True),
        ("cuda", (2.0, 1.0), (16.0, 24.0), False),  # copies that a single call hides
        ("cuda", (1.0, 2.0), (16.0, 8.0), False),
        ("cuda", (1.0, 0.99), (16.0, 8.0), False),  # within noise
    ],
)
def test_a_program_must_win_singly_and_not_lose_queued(
    device: str, single: tuple[float, float], queued: tuple[float, float], wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = [0]

    def call() -> None:
        called[0] += 1

    def timed(calls: dict[str, Callable[[], Any]], *_: Any) -> dict[str, list[float]]:
        called[0] = 0
        calls["eager"]()
        us = queued if called[0] == judge.QUEUED else single
        return {"eager": [us[0]] * 5, "program": [us[1]] * 5}

    monkeypatch.setattr(judge, "timed", timed)
    assert judge.faster(call, call, device == "cuda", lambda: None)[0] is wins
