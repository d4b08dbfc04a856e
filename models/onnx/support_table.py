"""Makes the table of supported ONNX operators in docs/onnx-support.md."""

from __future__ import annotations

import sys

from . import older
from .names import MICROSOFT
from .node import OPSETS
from .ops import OPERATORS

assert older  # registers operators of older opsets


def support_table() -> str:
    """Return the Markdown table of supported operators and their limits."""
    low, high = OPSETS
    added = [name for name in OPERATORS if name.startswith(f"{MICROSOFT}.")]
    lines = [
        "# ONNX operators",
        "",
        f"{len(OPERATORS) - len(added)} operators of the default domain, opset {low} to {high}, and {len(added)} of `{MICROSOFT}`, which",
        "ONNX Runtime and its exporters write. Subgraphs of `If`, `Loop` and `Scan` run where",
        "the condition or the trip count is known at load time. Models with sequence inputs or outputs, strings",
        "and optional types are not supported.",
        "Integer operands that set shapes, axes or sizes (of Reshape, Slice, Pad, TopK, ...) must be known at load time:",
        "constants, or arithmetic on sizes, which may be free dimensions. Training modes and random numbers are not built.",
        "4-bit integers are supported as initializers that are dequantized (DequantizeLinear, GatherBlockQuantized).",
        "A free size is 1 at least: a decoder's prompt is a graph of its own, without past (`dims={'past_sequence_length': 0}`).",
        "",
        "This page is generated: `python -m tensor_graphs.models.onnx.support_table > docs/onnx-support.md`.",
        "",
        "| operator | not supported |",
        "|---|---|",
    ]
    lines += [f"| {name} | {OPERATORS[name].limits} |" for name in sorted(OPERATORS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(support_table())


__all__ = ["support_table"]
