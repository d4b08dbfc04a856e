"""Stored measurements and saved programs outlive refactoring: identities and keys are declared text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c import emitter
from tensor_graphs.backends.registry import backends
from tensor_graphs.backends.tuning import keys
from tensor_graphs.costdb.keys.device import MachineKey
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.model.library_kernel import LibraryKernel, code_identity, identify

RECORDED = (
    Path(__file__).parents[1] / "data" / "version_0_1"
)  # written by version 0.1.0, before identities were declared
REWRITTEN = {
    "np.gather_elements",
    "cuda.gather_elements",
}  # kernels whose helper functions compute something else since
#: Kernels rewritten since, under another version: the last ones apply relu after oneDNN's call, which loses NaN.
NEWER_VERSION = {
    "np.matmul_int",
    *(f"torch.onednn{bias}_relu" for bias in ("", "_bias", "_bias_sum")),
    *(f"torch.onednn_conv{bias}{rest}" for bias in ("", "_bias")
      for rest in ("_relu", "_relu_rows", "_residual_relu", "_residual_left_relu")),
}  # fmt: skip
MACHINE = MachineKey("cpu:recorded", "driver:recorded", "toolchain:recorded")


@pytest.fixture
def recorded_machine() -> Iterator[None]:
    """The machine that the recorded store was measured on."""
    with mock.patch.object(keys, "_machine", lambda backend, threads, gpu: MACHINE):
        yield


def test_identities_and_helper_texts_are_those_of_recorded_stores() -> None:
    for name, rows in json.loads((RECORDED / "kernels.json").read_text()).items():
        now = {
            (t.name, t.identity, blake2b(keys._helpers(t).encode(), digest_size=8).hexdigest())
            for t in backends()[name].templates
        }
        rows = [tuple(row) for row in rows if row[0] not in NEWER_VERSION]
        assert {row[:2] for row in rows} <= {row[:2] for row in now}
        assert {row[0] for row in {*rows} - now} <= REWRITTEN


def test_a_recorded_store_still_prices_every_kernel(
    recorded_machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(RECORDED / "store", tmp_path / "store")  # opening a store writes its cache
    recorded = {row[0] for rows in json.loads((RECORDED / "kernels.json").read_text()).values() for row in rows}
    c = backends()["c"]  # its kernels that are newer than the store have no prices there
    monkeypatch.setitem(vars(c), "templates", tuple(t for t in c.templates if t.name in recorded))
    for since in ("EXPONENTIAL", "ROWS_KEPT"):  # these texts were rewritten since, under versions of their own
        monkeypatch.setattr(emitter, since, "")
    x = tg.input("x", (64, 128))
    w, v, g = tg.param("w", (128, 128)), tg.param("v", (128, 128)), tg.param("g", (128,))
    weight = np.linspace(-1, 1, 128 * 128, dtype=np.float32).reshape(128, 128)
    cases = (
        (tg.softmax((x * 0.125) @ w + x @ v), {"w": weight, "v": weight[::-1].copy()}),
        (tg.gelu(tg.rms_norm(x, g, eps=1e-5) @ w) + x, {"g": np.ones(128, np.float32), "w": weight}),
    )
    for graph, params in cases:
        program = tg.optimize(graph, params=params, deterministic=True, costdb=store, budget=600)
        assert {s.cost.source for s in program.plan.steps if not s.is_view} == {"measured"}


@pytest.mark.parametrize("name", ["attention", "norm_gelu"])
def test_recorded_programs_load_and_run(name: str) -> None:
    program = tg.load_program(RECORDED / "programs" / name)
    shape = {"attention": (1, 8, 32, 16), "norm_gelu": (64, 128)}[name]
    out = program(np.ones(shape, np.float32))
    assert np.isfinite(out).all() and out.shape == shape


def test_renaming_code_keeps_its_identity_and_a_nameless_function_is_refused() -> None:
    def one(call: object) -> str:
        return "x"

    def other(call: object) -> str:
        return "x"

    first, second = (LibraryKernel("t", "numpy", "x", identify(code, "pack.t[1]")) for code in (one, other))
    assert first.identity == second.identity
    with pytest.raises(UsageError, match="no declared identity"):
        code_identity(lambda call: "x")


def test_comments_and_docstrings_of_helpers_are_not_in_keys() -> None:
    name, text = next(iter(sorted(keys._recorded_helpers().items())))
    assert keys.key_text(name, text) == keys.key_text(name, f"# a comment\n{text}") == text
    assert keys.key_text(name, f"{text}\nchanged = 1") != text


def test_helpers_that_several_kernels_use_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A syntax tree takes milliseconds, and the first prices of a call wait for it."""
    parsed: list[str] = []
    monkeypatch.setattr(keys, "normalise", lambda text: parsed.append(text) or text)
    for _ in range(2):
        assert keys.key_text("no recorded name", "def f() -> int: return 987654") and len(parsed) == 1
