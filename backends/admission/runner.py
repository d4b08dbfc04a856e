"""Executes a file of user kernels in a child process and runs them on operands in shared memory.

Jobs and replies are JSON lines. Results are checked in the parent (checks.py), not here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...egraph.types.dtypes import torch_dtype
from ...errors import TensorGraphsError
from ...extract.model.kernel import Call, Operand, output_names
from ..generate.kernel_text import call_of_json, kernel_text, module_of
from ..ir.source_text import imports_of
from ..program.emit.execute import execute
from ..program.helpers.helper_functions import helper_source
from ..runtime.marshalling import tensor_of
from ..tuning.cpu_worker import main
from ..user.files import KernelFile
from ..user.templates import USER_PREFIX, UserKernel, templates_of
from .memory import OperandSpot, view_of

Runner = Callable[[], None]
_templates: list[UserKernel] = []
_bound: dict[str, tuple[mmap.mmap, Runner]] = {}  # the last call bound


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one job and return the reply: `load` a file and describe its kernels ("kernels" in the reply), `bind` a call
    to memory, or `run` it. The reply to a job that fails has a status and a message."""
    try:
        if job["job"] == "load":
            path, digest = job["file"]
            _templates[:] = templates_of(KernelFile(Path(path), digest))
            return {"ok": True, "kernels": [_described(t) for t in _templates]}
        if job["job"] == "bind":
            _bound["call"] = _bind(job)
        else:
            _bound["call"][1]()
        return {"ok": True}
    except TensorGraphsError as error:
        return {"ok": False, "status": "malformed", "message": error.message, "where": error.where}
    except MemoryError as error:
        return {"ok": False, "status": "memory", "message": f"memory ran out: {error}"[:400]}
    except (Exception, SystemExit) as error:
        return {"ok": False, "status": "error", "message": f"{type(error).__name__}: {error}"[:1000]}


def _described(template: UserKernel) -> dict[str, Any]:
    """A template's description as JSON data, from which the parent makes a template that can be matched but not run."""
    kernel, form = template.kernel, template.form
    return {
        "name": kernel.name, "language": kernel.language, "backend": template.backend,
        "inputs": {n: str(s) for n, s in kernel.inputs.items()}, "outputs": kernel.outputs,
        "types": kernel.types, "sizes": kernel.sizes, "where": kernel.where, "choices": kernel.choices,
        "constants": kernel.constants, "strided": kernel.strided, "nan": kernel.nan,
        "suffix": template.name.removeprefix(USER_PREFIX + kernel.name).partition("[")[0], "variant": template.variant,
        "form": {"pattern": form.pattern, "when": form.when, "derived": form.derived, "ranks": form.ranks},
    }  # fmt: skip


def _bind(job: Mapping[str, Any]) -> tuple[mmap.mmap, Runner]:
    """(mapped memory, function that runs a call on operands in it), for a job of kind `bind`."""
    template, call = _templates[job["template"]], call_of_json(job["call"])
    places = {n: OperandSpot(*p) for n, p in job["places"].items()}
    with open(job["memory"], "r+b") as file:
        raw = mmap.mmap(file.fileno(), 0)
    if template.backend in ("numpy", "c"):
        return raw, _on_host(template, call, {n: view_of(raw, places[n], o) for n, o in call.buffers.items()})
    return raw, _on_tensors(template, call, raw, places, job["device"])


def _on_host(template: UserKernel, call: Call, arrays: Mapping[str, Any]) -> Runner:
    """Function that runs a call on NumPy arrays, or on their addresses."""
    named = replace(call, names={n: n for n in arrays})
    definitions = dict(template.source(named)) if template.source is not None else {}
    parts = [*helper_source((), [(template.backend, n) for n in template.setup]), *definitions.values()]
    text = "\n\n\n".join([*imports_of("\n".join([*parts, "np"])), *parts])
    text += f"\n\n\ndef run({', '.join(arrays)}):\n    {template.write(named)}\n"
    space: dict[str, Any] = {"__name__": template.kernel.name}
    execute(text, f"<{template.name}>", space)
    given = [space["address"](a) if template.backend == "c" else a for a in arrays.values()]
    return lambda: space["run"](*given)


def _on_tensors(
    template: UserKernel, call: Call, raw: Any, places: Mapping[str, OperandSpot], device: str
) -> Runner:  # fmt: skip
    """Function that runs a call on Torch tensors; each run copies all bytes of the file to the device and back."""
    import numpy as np
    import torch

    module = module_of(kernel_text(template, call))
    shared = tensor_of(np.frombuffer(raw, np.uint8))
    there = shared if device == "cpu" else torch.empty_like(shared, device=device)

    def tensor(name: str, operand: Operand) -> Any:
        place, kind = places[name], torch_dtype(operand.type.dtype)
        return there[place.start : place.start + place.size].view(kind).as_strided(operand.type.shape, operand.strides)

    given = [tensor(n, o) for n, o in call.operands.items()]
    made = [tensor(n, o) for n, o in zip(output_names(len(call.outputs)), call.outputs)]
    order = [given[list(call.operands).index(n)] for n in template.operands]

    def run() -> None:
        if there is not shared:
            there.copy_(shared)
        module.run(*order, *made, None)
        if there is not shared:
            torch.cuda.synchronize()
            shared.copy_(there)

    return run


if __name__ == "__main__":
    os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")  # a fault is the faulting kernel's
    main(answer)

__all__: Sequence[str] = ()
