"""A backend is added in one place: at run time or by an entry point; its members are declared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends import registry
from tensor_graphs.backends.contract import BackendBase
from tensor_graphs.backends.device import TargetDevice
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.model.library_kernel import LibraryKernel


class Toy(BackendBase):
    """One kernel, and helpers of its own."""

    name = "toy"
    helpers = {"toy_tripled": "def toy_tripled(x, out):\n    np.multiply(x, 3.0, out=out)"}
    templates = (LibraryKernel("toy.tripled", "toy", "mul(x, 3.0)", "toy_tripled({x}, {out})", setup=("toy_tripled",)),)


@pytest.fixture
def toy() -> Iterator[Toy]:
    added = Toy()
    registry.register(added)
    yield added
    registry.unregister("toy")


def test_a_registered_backend_is_chosen_by_its_name_and_used(toy: Toy) -> None:
    assert [b.name for b in registry.select("toy")] == ["numpy", "toy"], "it works in the host's memory"
    x = t.input("x", (4,), "float32")
    program = tg.optimize(Graph.of(x * 3.0), backend="toy", budget=3, measure=False)
    found = {s.template.name for s in program.plan.steps}
    assert found <= {"toy.tripled", "np.mul"}
    np.testing.assert_array_equal(program(np.arange(4, dtype=np.float32)), 3 * np.arange(4, dtype=np.float32))


def test_names_are_taken_once(toy: Toy) -> None:
    with pytest.raises(UsageError, match="two backends are called 'toy'"):
        registry.register(Toy())
    other = type("Other", (Toy,), {"name": "other", "device": TargetDevice("cpu", True, "nowhere")})()
    with pytest.raises(UsageError, match="two devices are called 'cpu'"):
        registry.register(other)
    assert "other" not in registry.backends()


def test_a_removed_backend_is_unknown() -> None:
    with pytest.raises(UsageError, match="no backend is called 'toy'"):
        registry.backend("toy")


def test_an_entry_point_adds_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(**chosen: Any) -> Any:
        return [metadata.EntryPoint("toy", "tests.backends.test_contract:Toy", chosen["group"])]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Toy)
    try:
        registry.forget()
        assert registry.backend("toy").templates[0].name == "toy.tripled"
    finally:
        monkeypatch.undo()
        registry.forget()
    assert "toy" not in registry.backends()


@pytest.mark.parametrize("name", sorted(registry.backends()))
def test_every_backend_has_the_declared_members(name: str) -> None:
    found = registry.backend(name)
    assert found.name == name and found.device == registry.device(found.device.name)
    assert found.operands in ("numpy", "torch", "address") and {t.backend for t in found.templates} <= {name, "numpy"}
    assert found.opened().name == name and found.opened().opened().generates == found.generates
    assert not found.with_templates(()).templates and found.restricted(lambda t: False).name == name
    if found.unavailable() == "":
        assert found.measured in ("", "host", "gpu") and len(found.machine()) == 3
    if not found.generates:
        with pytest.raises(UsageError, match="generates no kernels"):
            found.template([t.input("x", (2,), "float32")])


#: Names of NVIDIA's libraries and of functions of its driver; `torch.cuda` is also the name of other vendors' GPUs.
VENDOR = re.compile(
    r"libcuda|(?<!\|)nvidia|\bcu(?:Launch|Graph|Tensor|Stream|Func|Module|Ctx)\w+|CudaLauncher|tl\.extra\.cuda|cuda\.core|nvrtc"
)


def test_docs_name_every_file_that_another_gpu_vendor_touches() -> None:
    root = Path(__file__).resolve().parents[2]
    files = [
        f for folder in ("backends", "costdb", "extract", "models", "src") for f in (root / folder).rglob("*.[pc]*")
    ]
    own = ("backends/cuda/", "backends/library/torch_cuda")
    found = set()
    for file in files:
        name = file.relative_to(root).as_posix()
        if file.suffix in (".py", ".c") and file.resolve() == file and not name.startswith(own):
            found |= {name} if VENDOR.search(file.read_text(encoding="utf-8")) else set()
    section = (root / "docs" / "backends.md").read_text(encoding="utf-8").partition("### A GPU of another vendor")[2]
    listed = set(re.findall(r"`([\w/]+/\w+\.(?:py|c))`", section.partition("`tests/backends")[0])) - {
        "backends/machine.py"
    }
    assert found == listed
