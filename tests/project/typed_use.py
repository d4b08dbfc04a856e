"""Code of a caller, for the type checker alone (`make types`): public names have types, misspelt ones are errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

import numpy as np

import tensor_graphs as tg
from tensor_graphs.extract.solve.extraction import Extraction
from tensor_graphs.report.report import Report


def expressions() -> None:
    """Functions and operators give tensors."""
    x, w = tg.input("x", (8, 16)), tg.param("w", (16, 4))
    assert_type(x, tg.Tensor)
    assert_type(tg.concat([x @ w, 2 * x - 1], axis=1), tg.Tensor)
    assert_type(tg.where(x > 0, x, tg.exp(x)).sum(axis=1), tg.Tensor)
    assert_type(tg.softmax(x), tg.Tensor)
    np.exp(x)
    tg.sofmax(x)  # type: ignore[attr-defined]
    tg.softmax(x, axes=1)  # type: ignore[call-arg]


def results(model: Callable[[int], str]) -> None:
    """Entry points give programs, reports and extractions; options are checked."""
    program = tg.optimize(model, budget=3)
    assert_type(program, tg.Program)
    assert_type(program.report, Report)
    assert_type(program.report.latency_after_us, float | None)
    assert_type(tg.extract("egraph.json", roots=["e"]), Extraction)
    assert_type(tg.compile(model)(3), str)
    with tg.settings.override(threads=1):
        assert_type(tg.errors.UsageError("wrong").hint, str)
    tg.optimize(model, budgett=3)  # type: ignore[call-arg]
    tg.torch_compile.wai()  # type: ignore[attr-defined]
