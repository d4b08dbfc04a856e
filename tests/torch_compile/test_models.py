"""Architectures of several kinds under the backend: the short form of `benchmarks.torch_compile.architectures`."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")

from benchmarks.models.torch_architectures import by_hand
from benchmarks.torch_compile import architectures as record


@pytest.mark.parametrize("name", ["convnext", "swin", "graph attention", "recommender"])
def test_an_architecture_is_a_program_with_eager_results(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = record.recorded(name, by_hand()[name], verify=False, budget=1, backend="torch")
    assert row["right"] and row["in_programs"] == row["operators"] and row["breaks"] == 0, row
    assert f"| {name} | yes |" in record.table([row])
