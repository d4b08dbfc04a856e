"""Writes briefs: requests for one kernel that computes a region (slow kernel calls) of a plan, as Markdown and JSON.

A brief has reference code, types, the roofline limit, and the kernels that the plan uses for the region.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..backends.generate.kernel_text import operand_json
from ..backends.program.launch.emission import emit_for
from ..backends.registry import backend
from ..backends.tuning.keys import machine_of
from ..backends.tuning.unfused import direct_plan
from ..egraph.ir.graph import Graph
from ..errors import TensorGraphsError
from ..extract.model.kernel import Operand, output_names
from ..extract.model.plan import Step, Value
from ..writing.files import write_text
from .regions import Region

LONGEST_SOURCE = 20_000  # characters of a kernel's source in a brief


@dataclass(frozen=True, repr=False)
class Brief:
    """A request for a kernel of a region (slow kernel calls of a plan). `number` counts from 1; `model`: the model's
    name.
    """

    number: int
    model: str
    region: Region

    def __repr__(self) -> str:
        r = self.region
        return f"Brief {self.number} of {self.model}: {r.us:.1f} µs, limit {r.limit_us:.1f} µs: {r.pattern}"

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of `tg.kernel` that work on the region's device."""
        on_gpu = backend(self.region.steps[0].template.backend).device.on_gpu
        return ("triton", "cuda", "torch") if on_gpu else ("c", "numpy", "torch")

    @property
    def declaration(self) -> str:
        """Source of a kernel file for the region, with a placeholder in place of the kernel's text."""
        inputs = ", ".join(f'"{n}": "{_spec(v)}"' for n, v in self.region.operands)
        outputs = f", outputs={len(self.region.results)}" if len(self.region.results) > 1 else ""
        strided = [n for n, v in self.region.operands if not Operand(v.type, v.strides).dense]
        more = outputs + (f", strided={strided}" if strided else "")
        return (
            f'import tensor_graphs as tg\n\n\n@tg.kernel("{self.languages[0]}", reference={self.region.pattern!r},\n'
            f"           inputs={{{inputs}}}{more})\ndef proposal():\n    return ...  # the source text\n"
        )

    def to_json(self) -> dict[str, Any]:
        """The brief as plain JSON values."""
        r = self.region
        return {
            "number": self.number, "model": self.model, "device": machine_of(r.steps[0].template.backend).device,
            "languages": self.languages, "count": r.count, "share": r.share, "us": r.us, "limit_us": r.limit_us,
            "gap_us": r.gap_us, "flops": r.flops, "bytes": r.bytes, "reference": r.pattern,
            "inputs": [{"name": n, **_described(v)} for n, v in r.operands],
            "outputs": [{"name": n, **_described(v)} for n, v in zip(output_names(len(r.results)), r.results)],
            "numpy": numpy_source(r), "kernels_today": [_today(s) for s in r.steps], "declaration": self.declaration,
        }  # fmt: skip

    def markdown(self) -> str:
        """The brief as a Markdown document."""
        facts = self.to_json()
        lines = [
            f"# Kernel wanted: {self.model}, region {self.number}", "",
            f"One kernel that computes `{facts['reference']}`.", "",
            "| | |", "|---|---|", f"| device | {facts['device']} ({platform.machine()}) |",
            f"| time today | {facts['us']:.2f} µs a call, {facts['count']} call{'s' * (facts['count'] != 1)}, {100 * facts['share']:.1f} % of the plan |",
            f"| roofline limit | {facts['limit_us']:.2f} µs a call |",
            f"| work | {facts['flops']:.3g} flops, {facts['bytes']:.3g} bytes |", "",
            "| value | dtype | shape | strides (elements) | |", "|---|---|---|---|---|",
            *(_row(v) for v in (*facts["inputs"], *facts["outputs"])), "", "## Reference in NumPy", "", "```python",
            facts["numpy"].strip(), "```", "", "## Kernels today",
        ]  # fmt: skip
        for k in facts["kernels_today"]:
            lines += ["", f"`{k['name']}`, {k['us']:.2f} µs ({k['source']}):", "", "```", k["text"].strip(), "```"]
        lines += [
            "", "## How to submit", "",
            f"Write one Python file that declares the kernel; languages: {', '.join(self.languages)}. Sizes may stay numbers, as",
            "below, or become names (docs/kernels.md). C and CUDA C++ functions take pointers to the inputs, then to the outputs.",
            "The file is executed as code; the kernel must not write outside of its outputs, change its inputs or give different",
            "results in two runs, and it is compared with the reference in float64, NaN and infinities included.", "",
            "```python", self.declaration.strip(), "```", "",
            "Check it with `tensor-graphs kernels check FILE`; use it with `tensor-graphs optimize MODEL --kernels FILE`.", "",
        ]  # fmt: skip
        return "\n".join(lines)


def _spec(value: Value) -> str:
    return f"{value.type.dtype}[{', '.join(map(str, value.type.shape))}]"


def _described(value: Value) -> dict[str, Any]:
    shape, dtype, strides = operand_json(Operand(value.type, value.strides))
    return {"dtype": dtype, "shape": shape, "strides": strides, "label": value.name, "weight": value.origin == "weight"}


def _row(v: dict[str, Any]) -> str:
    label = f"{v['label']} " if v["label"] else ""
    return f"| {v['name']} | {v['dtype']} | {v['shape']} | {v['strides']} | {label}{'weight' if v['weight'] else ''} |"


def numpy_source(region: Region) -> str:
    """A module whose `bind({})` returns a function that computes the region's terms with NumPy, one call an
    operation."""
    try:
        plan = direct_plan(Graph.of(list(region.terms), name="reference"), [backend("numpy")])
        return emit_for(plan).source
    except TensorGraphsError as error:
        return f"# no NumPy source: {error.message}"


def _today(step: Step) -> dict[str, Any]:
    """Name, price and source text of a kernel of the plan."""
    names = {n: n for n in (*step.call.operands, *output_names(len(step.outputs)), "scratch")}
    call = replace(step.call, names=names)
    texts = [] if step.template.source is None else list(step.template.source(call).values())
    text = "\n\n".join([*texts, step.template.write(call)])
    return {"name": step.template.name, "backend": step.template.backend, "us": step.cost.us, "source": step.cost.source,
            "computes": step.template.pattern, "text": text[:LONGEST_SOURCE]}  # fmt: skip


def write_briefs(folder: Path, briefs: Sequence[Brief]) -> list[str]:
    """Write `brief-N.md` and `brief-N.json` into a folder; return the paths."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for brief in briefs:
        for suffix, text in (("md", brief.markdown()), ("json", json.dumps(brief.to_json(), indent=1) + "\n")):
            path = folder / f"brief-{brief.number}.{suffix}"
            write_text(path, text)
            paths.append(str(path))
    return paths


__all__ = ["Brief", "numpy_source", "write_briefs"]
