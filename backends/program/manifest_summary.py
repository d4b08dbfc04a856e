"""Summarizes a program from its manifest: bytes on the device, one line of text, a table in HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ...egraph.types.dims import concrete
from ...extract.model.sizes import bound_value
from ...wording import counted
from .manifest import Manifest
from .weights import bytes_of


def memory_of(m: Manifest) -> dict[str, int]:
    """Bytes of memory that one plan takes on its device, by purpose; the keys are those of `Program.memory_by_kind`."""
    results = sum(bytes_of((n, concrete(bound_value(shape, m.chosen)), d)) for n, shape, d in m.outputs)
    results = min(results, m.fresh)  # outputs in reused memory are part of the workspace
    return {
        "weights": sum(map(bytes_of, m.weights)), "states": sum(map(bytes_of, m.states)), "workspace": m.workspace,
        "results": results, "staging": m.fresh - results,
    }  # fmt: skip


def described(m: Manifest) -> str:
    """One line about a program: name, types of inputs and outputs, number of kernels, estimated time of a call."""
    given, made = (", ".join(f"{n}: {d}{list(s)}" for n, s, d in specs) for specs in (m.inputs, m.outputs))
    estimate = f", {m.cost:.1f} µs estimated" if m.cost else ""
    return f"Program {m.name}({given}) -> ({made}): {counted(m.kernels, 'kernel')}{estimate}"


def html_table(m: Manifest, memory: Mapping[str, int], source: str) -> str:
    """HTML table about the program with the manifest `m`, for notebooks, with its `source` folded away. `memory`: bytes
    by device name."""
    rows = {
        "kernels": m.kernels, "estimated": f"{m.cost:.1f} µs" if m.cost else "not priced",
        "lower bound": f"{m.lower_bound:.1f} µs" if m.cost else "not priced",
        "memory": ", ".join(f"{n / 2**20:.1f} MiB on {d}" for d, n in memory.items()),
        "workspace": f"{m.workspace / 2**20:.2f} MiB",
    }  # fmt: skip
    cells = "".join(f"<tr><th>{k}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items())
    code = f"<details><summary>source</summary><pre>{escape(source)}</pre></details>"
    return f"<b>{escape(described(m))}</b><table>{cells}</table>{code}"
