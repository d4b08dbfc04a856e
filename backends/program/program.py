"""Defines the program: emitted source bound to weights. It is callable, and is saved as a folder that loads without
optimization.

A saved program is a folder with `program.py` (plain source), `manifest.json` (names, shapes, structure, checksums),
`weights.safetensors` and, if known, `report.json` (optimization report) and `origin.safetensors` (the source graph and
the terms of its kernels); also `kernels.cu`, a readable copy, if it has CUDA C++ kernels. A saved program is code: load
only what you trust. Plans for some buckets of sizes are saved programs in the folder `plans`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ...egraph.ir.weight_data import Data
from ...extract.model.bound_plan import bound_plan
from ...extract.model.plan import Plan
from ...writing.files import named_path
from ...writing.folders import replacing_folder
from .bound_program import BoundProgram
from .buckets import FOLDER
from .emit.memory_plan import Layout
from .launch.binaries import Binaries
from .launch.emission import emit_for
from .manifest import Manifest, initial_states, manifest_of
from .manifest_summary import described, html_table, memory_of
from .program_folder import refuse_occupied, stored_bytes, write_program
from .self_check import write_check
from .weights import Array, EvaluatedWeights, bytes_of


class Program(BoundProgram):
    """An executable plan: emitted source bound to weights.

    Takes inputs by position or name, as NumPy arrays or Torch tensors; returns outputs of the same kind in the graph's
    structure.

    Calls from several threads run one after another. Outputs are fresh arrays unless `reuse_outputs`. Weights are read
    at the first call or at `bind`. A state (memory kept between calls) starts as the param of its name, else as zeros.

    A program with free sizes runs at every size in their ranges; the first call at a size prepares its memory plan.

    On a GPU, kernels run on the caller's current stream, without synchronization unless results are converted to
    arrays. `device` names another device than the program was made for, such as "cuda:1", or "cpu" if Torch has the
    same kernels for CPUs.
    """

    kept_by = "program.save(folder), and tg.load_program(folder) where it is needed"
    attached: Callable[[Path], None] | None = None  # writes further files into a saved folder; set by the pipeline

    def __init__(
        self, plan: Plan, params: Mapping[str, Data] | None = None, *, reuse_outputs: bool = False,
        sizes: Mapping[str, int] | None = None, device: str | None = None,
    ) -> None:  # fmt: skip
        plan = bound_plan(plan, sizes or {})
        emitted = emit_for(plan, reuse_outputs=reuse_outputs)
        self.plan: Plan | None = plan
        self.layout: Layout | None = emitted.layout
        self._params: dict[str, Data] = {**plan.graph.params, **(params or {})}
        weights: Mapping[str, Array] = EvaluatedWeights(emitted.weights, self._params, emitted.plain)
        manifest = manifest_of(plan, emitted, initial_states(plan, emitted.states.items(), self._params))
        self._start(manifest, emitted.source, weights, device)

    @classmethod
    def from_saved(
        cls,
        manifest: Manifest,
        source: str,
        weights: Mapping[str, Array],
        binaries: Binaries | None,
        device: str | None,
    ) -> Program:
        """A program from the parts of a saved folder; its `plan` is None.

        `source`: text of program.py. `weights`: arrays by key. `binaries`: compiled kernels, if they are known.
        `device`: the user's choice; None for the manifest's device.
        """
        made = object.__new__(cls)
        made.plan, made.layout, made._params = None, None, {}
        made._start(manifest, source, weights, device)
        made._binaries = binaries
        return made

    # ------------------------------------------------------------ inspection
    def memory(self) -> dict[str, int]:
        """Bytes of memory that the program takes, by device name: for its device, the sum of `memory_by_kind`."""
        return {self.manifest.device: sum(self.memory_by_kind().values())}

    def memory_by_kind(self) -> dict[str, int]:
        """Bytes on the program's device, by purpose, known before anything is allocated.

        Keys: weights, states and workspace (intermediate values), held from binding to `unbind`; results, the outputs
        of one call; staging, the peak of further memory in binding or in a call, for copies of inputs, packed weights
        and results that library kernels allocate. Programs with free sizes are counted at the sizes for which the plan
        was chosen.
        """
        found = memory_of(self.manifest)
        for plan in self.plans.values():
            own = memory_of(plan.manifest)
            own["weights"] = sum(bytes_of(s) for s in plan.manifest.weights if s[0] not in plan.manifest.borrowed)
            for kind, nbytes in own.items():
                found[kind] = found[kind] + nbytes if kind in ("weights", "workspace") else max(found[kind], nbytes)
        return found

    def __repr__(self) -> str:
        return described(self.manifest)

    def _repr_html_(self) -> str:
        return html_table(self.manifest, self.memory(), self.source)

    # ------------------------------------------------------------ saving
    def save(self, folder: str | Path) -> Path:
        """Write the program as a folder and return its path.

        An existing program is replaced atomically. States are saved with their initial values, not their current ones.
        The compiled kernels are saved, too, for a GPU those that were compiled for calls so far: loaded on the same
        kind of processor, the program needs no compiler. A loaded program returns named tuples of the original type if
        it is imported by then, else of an equal type, and dicts in place of other types (`egraph/ir/structure.py`).

        Raises UsageError if the folder holds something else. Raises UnwritableError if writing fails; an existing
        program is kept then.
        """
        target = named_path(folder)
        refuse_occupied(target)
        with replacing_folder(
            target, needed=sum(len(p.source) + stored_bytes(p.manifest) for p in (self, *self.plans.values()))
        ) as part:
            self._write(part)
            for name, plan in self.plans.items():
                (part / FOLDER / name).mkdir(parents=True)
                plan._write(part / FOLDER / name)
            write_check(part, self)
        return target

    def _write(self, part: Path) -> None:
        """Write this plan's files into an empty folder."""
        self._collect()
        self._compile_for_saving()
        manifest = replace(self.manifest, launch_mode=self.launch_mode, break_even=self.break_even)
        write_program(part, manifest, self.source, self._weights, self._binaries)
        if self.report is not None:
            (part / "report.json").write_text(json.dumps(self.report.to_json()), encoding="utf-8")
        if self.attached is not None:
            self.attached(part)
