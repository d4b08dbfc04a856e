"""Represents tuning jobs, kernel calls as data, and reads and writes files of them for another machine
(job_measuring.py).

A job names a kernel (a backend's template, or the term of a generated kernel), describes a call, and may list schedules
(tuning parameters). Only kernels that the local emitters write from these names and terms are executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...costdb.store import bounded_parquet
from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...errors import TensorGraphsError, UsageError
from ...extract.model.kernel import Call, Candidate, Template
from ...plain import Malformed, read_bytes
from ...writing.files import write_bytes
from ..generate.kernel_text import call_json, call_of_json
from ..ir.precision import IEEE
from .keys import key_of

FORMAT = 1
LARGEST_BYTES = 1 << 28  # maximum size of a job file
MOST_ELEMENTS = 1 << 34  # maximum elements of one operand

Job = dict[str, Any]


# ---------------------------------------------------------------- jobs
def job_of(template: Template, call: Call) -> Job:
    """A call as a job (a JSON object)."""
    found: Job = {"backend": template.backend, "template": template.name, "identity": template.identity,
                  "pattern": template.pattern, "call": call_json(replace(call, names={}))}  # fmt: skip
    return found | template.job_fields()


def read_job(job: Job) -> tuple[Template, list[Call]]:
    """The template (a kernel's pattern and code) of a job and its calls, one per listed schedule, else the single call.

    Raises UsageError for a malformed job.
    """
    try:
        call = _checked(call_of_json(job["call"]))
        template = template_of_job(job, call)
        wanted = job.get("schedules")
        calls = [call] if wanted is None else [replace(call, schedule=_schedule(s)) for s in wanted]
    except TensorGraphsError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise UsageError(f"not a job: {type(error).__name__}: {error}") from None
    if set(template.operands) != set(call.operands):
        raise UsageError(f"{template.name} takes {list(template.operands)}, not {list(call.operands)}")
    if len(template.terms) != len(call.outputs):
        raise UsageError(f"{template.name} makes {len(template.terms)} values, not {len(call.outputs)}")
    return template, calls


def template_of_job(job: Job, call: Call) -> Template:
    """Find the template (a kernel's pattern and code) that a job names, or regenerate its kernel. `call`: the job's
    call, parsed.

    Raises UsageError if this version's kernel has another identity.
    """
    from ..registry import template

    if "leaves" not in job:
        found = template(job["backend"], job["template"])
    else:
        found = _generated(job, call)
    if found.identity != job["identity"]:
        raise UsageError(f"{job['template']} is another kernel in this version", hint="write the jobs again")
    return found


def _generated(job: Job, call: Call) -> Template:
    from ...egraph.builders.builders import input as placeholder
    from ...egraph.patterns.pattern import build
    from ...egraph.patterns.pattern_parser import parse_terms
    from ..registry import backend

    leaves = {
        name: placeholder(name, call.operands[name].type.shape, dtypes.check(dtype))
        for name, dtype in job["leaves"].items()
    }
    roots = [build(term, leaves, {}) for term in parse_terms(str(job["pattern"]))]
    laid_out, last = [str(name) for name in job.get("laid_out", ()) if name in leaves], job.get("channels_last") is True
    return backend(job["backend"]).template(roots, laid_out, last, job.get("precision", IEEE.name))


def _checked(call: Call) -> Call:
    for o in (*call.operands.values(), *call.outputs):
        size = 1
        for d in o.type.shape:
            size *= _natural(d)
        if size > MOST_ELEMENTS or len(o.strides) != len(o.type.shape):
            raise UsageError(
                f"the operand of {size} elements with strides {o.strides} is too large or has another number of axes"
            )
        Type(o.type.shape, dtypes.check(o.type.dtype))
        for s in o.strides:
            if type(s) is not int or abs(s) > MOST_ELEMENTS:
                raise UsageError(f"the stride {s!r} is not an integer of at most {MOST_ELEMENTS}")
    return replace(call, schedule=_schedule(call.schedule))


def _schedule(data: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): _natural(value) for name, value in data.items()}


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_ELEMENTS:
        raise UsageError(f"{value!r} is not a valid size")
    return value


# ---------------------------------------------------------------- files
def write_jobs(path: str | Path, candidates: Iterable[Candidate]) -> int:
    """Write one job (request to measure a kernel) per distinct kernel call of `candidates`: JSON lines, or Parquet for
    a `.parquet` path; atomic.

    Returns the number of jobs. Raises UnwritableError if the file cannot be written.
    """
    seen: dict[str, str] = {}
    for c in candidates:
        if not c.is_view:
            seen.setdefault(key_of(c.template, c.call).digest, json.dumps(job_of(c.template, c.call)))
    target, lines = Path(path), list(seen.values())
    if target.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"job": pa.array(lines, pa.string())}), sink)
        write_bytes(target, sink.getvalue().to_pybytes())
    else:
        header = json.dumps({"tensor_graphs_jobs": FORMAT, "count": len(lines)})
        write_bytes(target, ("\n".join([header, *lines]) + "\n").encode())
    return len(lines)


def read_jobs(path: str | Path) -> list[Job | str]:
    """The jobs (requests to measure kernels) of a file; an error text replaces a malformed line. Raises UsageError for
    another kind of file."""
    source = Path(path)
    try:
        content = read_bytes(source, LARGEST_BYTES)
    except Malformed as problem:
        raise UsageError(str(problem), where=str(path)) from None
    if source.suffix == ".parquet":
        return [_parsed(line) for line in _parquet_lines(content, source)]
    first, *lines = content.decode("utf-8", errors="replace").splitlines() or [""]
    header = _parsed(first)
    if isinstance(header, str) or header.get("tensor_graphs_jobs") != FORMAT:
        raise UsageError("this is no file of jobs", where=str(path), hint="`tensor-graphs profile MODEL --jobs FILE`")
    return [_parsed(line) for line in lines if line.strip()]


def _parquet_lines(content: bytes, source: Path) -> list[str]:
    import pyarrow as pa

    try:
        table = bounded_parquet.read(content, pa.schema([("job", pa.string())]), LARGEST_BYTES, checksums=False)
        return [str(line) for line in table.column("job").to_pylist()]
    except bounded_parquet.TooLarge as error:
        raise UsageError(str(error), where=str(source)) from None
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, MemoryError) as error:
        raise UsageError("this is no Parquet file of jobs", where=str(source)) from error


def _parsed(line: str) -> Job | str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"[:200]
    return found if isinstance(found, dict) else "not a JSON object"
