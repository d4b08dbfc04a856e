"""Checks of generated kernels on the CPU: the kernel IR, interpreted in NumPy, against the values of the e-graph; and
GPU programs: Triton in its interpreter, CUDA C++ compiled by the host's compiler.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Operand

from ..backends import kernel_interpreter
from .checks import SEEN, backends_of, data_of, forms, plans
from .graphs import Case

Array = np.ndarray[Any, Any]
EACH = 60  # kernels of a graph that are looked at


def lying(value: Array, operand: Operand) -> Array:
    """Array of the memory of an operand, in which `value` has the operand's strides; gaps are 0."""
    shape = concrete(operand.type.shape)
    kind = np.float64 if dtypes.is_float(operand.type.dtype) else dtypes.numpy_dtype(operand.type.dtype)
    room = np.zeros(1 + sum((d - 1) * s for d, s in zip(shape, operand.strides) if d), kind)
    there = np.lib.stride_tricks.as_strided(room, shape, [room.itemsize * s for s in operand.strides])
    there[...] = value
    return room


def specified(one: Case, rng: random.Random) -> str:
    """Problem if the IR of a kernel computes other values than its term, in any layout."""
    _, view = forms(one)
    found = candidate_hypergraph(view, backends_of("numpy", "torch_cuda", "triton", "nvrtc", "c"), view_strides)
    choice = view.cheapest([1.0] * len(view))[1]
    data = data_of(one)
    known = [c for c in range(view.n_classes) if choice[c] >= 0]
    with np.errstate(all="ignore"):
        value = dict(zip(known, evaluate(view.terms(choice, known), data, params=data, float64=True)))
    made = [c for c in found.candidates if isinstance(c.template, GeneratedKernel) and not c.template.prep]
    for c in rng.sample(made, min(EACH, len(made))):
        assert isinstance(c.template, GeneratedKernel)
        lowered = c.template.lower(c.call)
        assert lowered is not None
        classes = {
            **{n: v.cls for n, v in c.inputs},
            **dict(zip([n for n in c.call.buffers if n not in c.call.operands], [v.cls for v in c.outputs])),
        }
        if any(classes[n] not in value for n in c.call.buffers):
            continue
        memory = {n: lying(value[classes[n]], o) for n, o in c.call.operands.items()}
        outs = {n: o for n, o in c.call.buffers.items() if n not in c.call.operands}
        for n, o in outs.items():
            fresh = np.asarray(np.nan if dtypes.is_float(o.type.dtype) else 77)
            base = c.template.bases.get(n)  # of which the kernel writes some places
            memory[n] = lying(value[classes[base]] if base is not None else fresh, o)
        with np.errstate(all="ignore"):
            kernel_interpreter.run(lowered.kernel, memory)
        SEEN[f"specification {c.template.family}"] += 1
        for n, o in outs.items():
            got = np.lib.stride_tricks.as_strided(
                memory[n], concrete(o.type.shape), [memory[n].itemsize * s for s in o.strides]
            )
            want = value[classes[n]].astype(memory[n].dtype)
            fine = np.isfinite(want)
            peak = max(
                [
                    1.0,
                    *(
                        float(np.abs(value[k].astype(np.float64)[np.isfinite(value[k])]).max(initial=0.0))
                        for k in classes.values()
                    ),
                ]
            )
            near = np.abs(got - want) <= 1e-8 * peak if dtypes.is_float(o.type.dtype) else got == want
            if not np.all(near | ~fine):
                return f"{c.template.name} {c.template.pattern} {c.call.buffers}\n{lowered.kernel}\ngives {got!r}\nnot {want!r}"
    return ""


def triton(one: Case, rng: random.Random) -> str:
    """Problem of programs of Triton kernels in Triton's interpreter; values are stored in the dtypes of the graph."""
    return plans(one, rng, names=("torch_cuda", "triton"), tries=4, device="cpu", narrow=True)


@contextmanager
def emulated() -> Iterator[None]:
    """Context manager in which cuda-core and a GPU are emulated on this CPU."""
    import torch

    from ..backends.cuda_host import cuda_core

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(sys.modules, cuda_core(Path(folder))),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
    ):
        yield


def cuda(one: Case, rng: random.Random) -> str:
    """Problem of programs of CUDA C++ kernels, compiled by the host's compiler."""
    with emulated():
        return plans(one, rng, names=("torch_cuda", "nvrtc"), tries=3, device="cpu", narrow=True)


def gpu(one: Case, rng: random.Random) -> str:
    """Problem of programs of all GPU backends, run on a GPU."""
    return plans(one, rng, names=("torch_cuda", "triton", "nvrtc"), tries=2, device="cuda", narrow=True)
