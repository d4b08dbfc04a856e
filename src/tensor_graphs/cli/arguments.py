"""Defines types of arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import summary

Model = Annotated[
    str,
    typer.Argument(
        help="a .onnx, .gguf or .pt2 file, a .safetensors file that tg.save_graph wrote, or a folder with config.json and safetensors"
    ),
]
Dims = Annotated[
    list[str] | None, typer.Option("--dim", help="NAME=INT: size of a free dimension to optimize at; repeatable")
]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", help="NAME=INT: compile a free dimension for this size only; repeatable")
]
Backend = Annotated[str, typer.Option(help=summary("backend"))]
Budget = Annotated[float, typer.Option(help=summary("budget"))]
ToleranceOption = Annotated[str, typer.Option(help=summary("tolerance"))]
CostDb = Annotated[Path | None, typer.Option(help=summary("costdb"))]
Roots = Annotated[
    list[str] | None,
    typer.Option(
        "--root",
        help="class to extract instead of the file's roots: its id, the id of one of its nodes, or the name of an egglog variable; repeatable",
    ),
]
Trust = Annotated[bool, typer.Option("--trust-model", help=summary("trust"))]
Seed = Annotated[int, typer.Option(help=summary("seed"))]
Nodes = Annotated[int, typer.Option(help="maximum number of e-nodes per block")]
Iterations = Annotated[int, typer.Option(help="maximum number of saturation iterations per block")]
Beam = Annotated[
    int | None,
    typer.Option(
        help="e-nodes per e-class that rewriting continues from (beam width); 0: all; default 4; larger values are rounded to 8, 32 or all"
    ),
]
Slack = Annotated[
    float,
    typer.Option(help="keep e-nodes whose cost exceeds the best of their e-class by at most this many kernel launches"),
]
Effort = Annotated[int, typer.Option(help=summary("effort"))]
MemoryLimit = Annotated[float | None, typer.Option(help=summary("memory_limit"))]
Quantize = Annotated[str | None, typer.Option(help=summary("quantize"))]
ErrorBudget = Annotated[float | None, typer.Option(help=summary("error_budget"))]
