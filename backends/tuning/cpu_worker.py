"""Measures CPU kernels in a worker process, which reads jobs as JSON lines and answers each with one JSON line.

A job names a template (a kernel's pattern and code) and describes operands; the pipe carries no code. A kernel's result
is checked against a float64 reference before its time counts. A job that kills this process costs only that job: the
parent starts another worker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.builders import builders as api
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, structural_digest, topological
from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import build
from ...egraph.patterns.pattern_parser import parse_terms
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Operand, Template
from ...extract.model.meaning import output_terms
from ...extract.model.work import call_work
from ...processes import memory_limits as host
from ...processes.child import die_with_parent, own_output
from ..runtime.threads import one_blas_thread
from ..user.files import KernelFile
from ..user.templates import templates_of
from ..verification import compare
from ..verification.rounding_noise import RoundingSensitivity
from .compiling_queue import CompilingQueue
from .cpu_timing import WALL, WATCHES, timed
from .kernel_strips import KernelStrip, strips_of
from .measured_operands import drawn, operand_values, shown
from .result_check import Wrong, check, check_layout, check_values, worst
from .single_kernel import Array, compiled, in_layout

COPIES = 64  # maximum sets of operands
REFERENCE_FLOPS = 1e9  # above this many flops, the reference uses the kernel's own dtypes instead of float64
PRELOAD = "TENSOR_GRAPHS_PRELOAD"  # environment variable: the library to import before the first job; only "torch"
KEPT_BYTES = 1 << 29  # total size of cached references
COMPILING_S = 0.3  # most seconds for which kernels of other backends wait for the compiler of C kernels
_compiling = CompilingQueue()  # kernels compiled before they are measured


# ---------------------------------------------------------------- jobs
def encode(template: Template, call: Call) -> dict[str, Any]:
    """A template (a kernel's pattern and code) and its call as the JSON values of a job."""

    def operand(o: Operand) -> list[Any]:
        return [list(concrete(o.type.shape)), o.type.dtype, list(o.strides)]

    inputs = [n for n in topological(template.roots) if n.op == "input"]
    leaves = {n.attr("name"): [list(concrete(n.shape)), n.dtype] for n in inputs}
    return {
        "backend": template.backend, "template": template.name, "identity": template.identity,
        **({"pattern": template.pattern, "leaves": leaves} if leaves else {}),
        **({"laid_out": sorted(template.prep)} if leaves and template.prep else {}),
        **({"channels_last": True} if leaves and template.job_fields().get("channels_last") else {}),
        **({} if template.roots else template.job_fields()),
        "operands": {name: operand(o) for name, o in call.operands.items()}, "outputs": [operand(o) for o in call.outputs],
        "attrs": {name: list(v) if isinstance(v, tuple) else v for name, v in call.attrs.items()},
    }  # fmt: skip


def decode(job: Mapping[str, Any]) -> tuple[Template, Call]:
    """The template (a kernel's pattern and code) and call of a job. The template is found by name in the registry or
    regenerated from its pattern.

    Raises ValueError if this process has another version of the kernel.
    """
    from ..registry import add_kernels, backend, template

    if "leaves" in job:
        leaves = {n: api.input(n, tuple(shape), dtype) for n, (shape, dtype) in job["leaves"].items()}
        roots = [build(term, leaves, {}) for term in parse_terms(job["pattern"])]
        prepared = job.get("laid_out", ())  # weights whose layout changes at load time
        found: Template = backend(job["backend"]).template(roots, prepared, job.get("channels_last", False))
    else:
        if "kernel_file" in job:  # this process executes a file that its parent has executed
            path, digest = job["kernel_file"]
            add_kernels(templates_of(KernelFile(Path(path), digest)))
        found = template(job["backend"], job["template"])
    if found.identity != job["identity"]:
        raise ValueError("the parent has another version of this kernel")

    def operand(o: list[Any]) -> Operand:
        return Operand(Type(tuple(o[0]), o[1]), tuple(o[2]))

    attrs = {name: tuple(v) if isinstance(v, list) else v for name, v in job["attrs"].items()}
    first, *more = map(operand, job["outputs"])
    return found, Call({n: operand(o) for n, o in job["operands"].items()}, first, attrs, more=tuple(more))


# ---------------------------------------------------------------- correctness
_references: dict[bytes, tuple[str, list[Array]]] = {}


def _shares(x: Array) -> bool:
    """Whether an array has elements that overlap in memory."""
    span: int = x.itemsize + sum((d - 1) * abs(s) for d, s in zip(x.shape, x.strides))
    return span < x.nbytes


def _reference(
    roots: Sequence[Tensor], given: Mapping[str, Any], operands: Mapping[str, Array], flops: float
) -> tuple[str, list[Array]]:
    """(precision, reference outputs) of terms for given operands, cached while kernels with the same meaning are
    measured. The cache key includes storage dtypes, value ranges, and strides of overlapping operands, because these
    change the operands' values."""
    drawn = [(n, how, operands[n].strides if _shares(operands[n]) else None) for n, how in sorted(given.items())]
    key = b"".join(map(structural_digest, roots)) + repr(drawn).encode()
    if key not in _references:
        wide = flops <= REFERENCE_FLOPS
        value = evaluate(roots, {}, params=dict(operands), float64=wide)
        _references[key] = ("float64" if wide else "own dtypes", value)
        sizes = [sum(v.nbytes for v in values) for _, values in _references.values()]
        while len(_references) > 1 and (len(_references) > 6 or sum(sizes) > KEPT_BYTES):
            del _references[next(iter(_references))], sizes[0]
    return _references[key]


# ---------------------------------------------------------------- time
def _copies(operands: Mapping[str, Array]) -> int:
    """Number of operand sets to rotate through.

    Operands of 1 MiB and more get enough sets to miss the cache, like a model's weights. Operands larger than twice the
    cache get a single set, to limit peak memory.
    """
    largest = max((a.nbytes for a in operands.values()), default=0)
    if largest >= 2 * _last_cache():
        return 1
    return 2 if largest < 1 << 20 else max(2, min(COPIES, 2 * _last_cache() // largest))


@cache
def _last_cache() -> int:
    """Bytes of the largest cache of core 0, clamped to 16..64 MiB; 32 MiB if unknown."""
    sizes = [
        p.read_text(encoding="ascii").strip() for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    known = [int(t[:-1]) << {"K": 10, "M": 20}[t[-1]] for t in sizes if t[:-1].isdigit() and t[-1] in "KM"]
    return min(max(max(known, default=32 << 20), 16 << 20), 64 << 20)


def _declared(roots: Sequence[Tensor], operands: Mapping[str, Array]) -> dict[str, Array]:
    """The operands converted to the dtypes of the terms' leaves, which differ from the dtypes in memory where storage
    dtypes are mixed."""
    kinds = {str(n.attr("name")): dtypes.numpy_dtype(n.dtype) for n in topological(roots) if n.op == "param"}
    return {name: operands[name].astype(kind, copy=False) for name, kind in kinds.items()}


def _checked(
    roots: Sequence[Tensor], given: Mapping[str, Any], operands: Mapping[str, Array], call: Call, got: Sequence[Array], flops: float
) -> tuple[str, dict[str, float]]:  # fmt: skip
    """(precision of the reference, error norms of a kernel's outputs). Raises Wrong for a large error."""
    floats = [o.type.dtype for o in call.buffers.values() if dtypes.is_float(o.type.dtype)]
    allowed = max((compare.KERNEL[d] for d in floats), default=0.0)
    with np.errstate(all="ignore"), one_blas_thread():
        if (strips := strips_of(roots, operands)) is not None:
            return "float64", _checked_strips(strips, call, got, allowed)
        declared = _declared(roots, operands)
        reference, want = _reference(roots, given, operands, flops)
        disturbed = RoundingSensitivity(Graph.of(list(roots), params=declared), {})
        checked = enumerate(zip(call.outputs, got, want, strict=True))
        return reference, worst([check(o, g, w, k, allowed, disturbed) for k, (o, g, w) in checked])


def _checked_strips(
    strips: Sequence[KernelStrip], call: Call, got: Sequence[Array], allowed: float
) -> dict[str, float]:  # fmt: skip
    """Largest error norms of a kernel's outputs over strips. Raises Wrong for a large error."""
    for output, y in zip(call.outputs, got, strict=True):
        check_layout(output, y)
    found = []
    for s in strips:
        want, disturbed = s.reference()
        found.append(check_values(call.outputs[s.output].type, s.of(got[s.output]), want, 0, allowed, disturbed))
    return worst(found)


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one measuring job (request to measure a kernel) and return the reply.

    With "compile" true, only compiling the kernel is begun, which leaves its code in the cache. With "check" false, the
    kernel is timed without a check, because it passed the check in an earlier job. "clock" is a key of `WATCHES`.
    Reply: "samples" in µs, "accuracy" (norms), and "reference", the precision of the reference ("" without a check); of
    a failure, its status, stage and message.
    """
    stage = "compile"
    try:
        template, call = decode(job)
        if job.get("compile"):
            _compiling.add(template, call)
            return {"ok": True, "samples": [], "accuracy": {}, "reference": ""}
        _compiling.wait(None if template.backend == "c" else COMPILING_S)  # a compiler disturbs measurements
        flops = call_work(template, call)[0]
        roots = output_terms(template, call)
        given = drawn(roots, call)
        operands = {name: in_layout(operand_values(name, *given[name]), o) for name, o in call.operands.items()}
        bind = compiled(template, call)
        runs = [bind(operands)]
        stage = "run"
        got = [y.copy(order="K") for y in runs[0]()]
        stage = "check"
        reference, found = _checked(roots, given, operands, call, got, flops) if job.get("check", True) else ("", {})
        stage = "time"
        if last := shown(operands, given, call):
            operands, runs = last, [bind(last)]
        for _ in range(_copies(operands) - 1):
            runs.append(bind({n: in_layout(np.array(a), call.operands[n]) for n, a in operands.items()}))
        samples, _ = timed(runs, float(job["seconds"]), WATCHES[job.get("clock", WALL)])
    except Wrong as error:
        return {"ok": False, "status": "wrong", "stage": stage, "message": str(error)}
    except MemoryError as error:
        return {"ok": False, "status": "memory", "stage": stage, "message": f"memory ran out: {error}"[:400]}
    except Exception as error:
        status = "memory" if "can't allocate memory" in str(error) else "error"  # Torch raises a RuntimeError
        return {"ok": False, "status": status, "stage": stage, "message": f"{type(error).__name__}: {error}"[:400]}
    return {
        "ok": True,
        "samples": samples,
        "accuracy": found,
        "reference": reference,
    }


# ---------------------------------------------------------------- the process


def preload() -> None:
    """Import Torch if the environment variable `PRELOAD` asks for it, and measure a small kernel once.

    Otherwise the first kernel of a search waits for imports and first calls, a quarter of a second; here they take
    place while the model is loaded. Errors are ignored: the first job (request to measure a kernel) reports them.
    """
    if os.environ.get(PRELOAD) == "torch":
        with suppress(ImportError):
            import torch  # noqa: F401
    from ..registry import template

    small = Operand(Type((64, 64), "float32"), (64, 1))
    answer({**encode(template("numpy", "np.tanh"), Call({"x": small}, small, {})), "seconds": 1e-4})


def main(
    handle: Callable[[Mapping[str, Any]], dict[str, Any]] = answer, begin: Callable[[], None] = preload,
    device: bool = False,
) -> None:  # fmt: skip
    """Call `begin`, then answer jobs from standard input by `handle` until the input ends.

    SIGINT is left to the parent. `device`: the process uses a GPU.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    host.limit_own_memory(device=device)
    out = own_output()
    threads = int(os.environ.get("TENSOR_GRAPHS_THREADS") or 0)
    if threads and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    begin()

    def send(number: int, what: Mapping[str, Any]) -> None:
        out.write(json.dumps({"id": number, **what}) + "\n")
        out.flush()

    for line in sys.stdin:
        job = json.loads(line)
        _senders[:] = [partial(send, job["id"])]
        send(job["id"], handle(job))


_senders: list[Callable[[Mapping[str, Any]], None]] = []  # sends a message to the parent during a job


def waiting(waits: bool) -> None:
    """Tell the parent that the job (request to measure a kernel) waits for a lock, or no longer waits.

    Waiting does not count towards the job's deadline.
    """
    for send_now in _senders:
        send_now({"waits": waits})


if __name__ == "__main__":
    main()
