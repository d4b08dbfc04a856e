"""Runs the stage "load": converts the source to a graph with weights and sizes, and compares the graph with the
caller's function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...egraph.ir.graph import Graph
from ...errors import UsageError, warned
from ...verification.memory_checks import memory_errors_named
from ..context.session import Session, kept_warnings
from ..sources.caller import Caller
from ..sources.source import as_graph, as_tuple, bound, refuse_non_integer_sizes, sizes_of
from ..trace_checks import trace_check
from ..trace_checks.trace_outside import outside_reads

COMPARING = 0.1  # fraction of the remaining budget that each optional part of a comparison may take


@dataclass(frozen=True)
class Loaded:
    """A loaded source: its graph, sizes of free dimensions, and text about the comparison with the caller's function
    (`compared`)."""

    graph: Graph
    sizes: dict[str, int]
    compared: str = ""


def load(session: Session, source: Any, example_inputs: Any) -> Loaded:
    """Load a source (expression, function, module or file) with the session's options and compare its graph with the
    caller's function.

    Sets `session.caller`. Raises UsageError for sizes that are not integers or are given twice, TraceError if the
    function returns other values than the graph, and the errors of `as_graph`.
    """
    options = session.options
    with session.stage("load", str(source) if isinstance(source, str | Path) else ""), kept_warnings(session):
        given = options.fixed if isinstance(options.fixed, Mapping) else {}
        refuse_non_integer_sizes(given)
        if both := sorted(set(given) & set(options.dims or {})):
            raise UsageError(
                f"the sizes of {both} are given twice",
                hint="name a dimension in dims (it stays free) or in fixed (it has this size only)",
            )
        graph = as_graph(
            source, example_inputs, params=options.params, dims=given, dynamic_shapes=options.dynamic_shapes,
            example_kwargs=options.example_kwargs, trust=options.trust, budget=options.budget,
        )  # fmt: skip
        session.caller = Caller.of(source, as_tuple(example_inputs), options.example_kwargs or {})
        graph = graph.bind({n: s for n, s in given.items() if n in graph.free_dims})
        sizes = {**given, **sizes_of(graph, options.dims)}
        if options.fixed is True:
            graph, sizes = bound(graph, sizes)
        if callable(source) and (read := outside_reads(source)):
            warned(f"the code reads {', '.join(read)}: the program has the values that were read while it was made")
    session.loaded()
    compared = ""
    if options.verify and not options.params:
        with session.stage("compare with the caller's function"), memory_errors_named(graph):
            compared = trace_check.compare(
                source, example_inputs, graph, sizes=sizes, kwargs=options.example_kwargs, seed=options.seed,
                spare=lambda: math.inf if options.deterministic else COMPARING * session.left,
            )  # fmt: skip
    return Loaded(graph, sizes, compared)


__all__ = ["Loaded", "load"]
