"""Runs several kernels as one program, whose text is emitted, compiled and loaded once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.program.emit.emit_cpu import ProgramEmitter
from tensor_graphs.backends.program.launch.emission import emit_for, executed
from tensor_graphs.backends.tuning.single_kernel import kernel_plan
from tensor_graphs.egraph.builders import builders as api
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.extract.model.kernel import Call, Template
from tensor_graphs.extract.model.plan import Plan

Array = np.ndarray[Any, Any]
Case = tuple[Template, Call, Mapping[str, Array]]  # a kernel, its call, its operands in the call's layouts


def joined(plans: Sequence[Plan]) -> Plan:
    """The plan that runs the steps of plans of single kernels; the weight `x` of plan 3 is called `k3_x`."""
    values, steps, weights, outputs, roots = [], [], {}, [], []
    for number, plan in enumerate(plans):
        first = len(values)
        values += [replace(v, id=first + v.id) for v in plan.values]
        weights |= {
            first + i: api.param(f"k{number}_{w.attr('name')}", w.shape, w.dtype) for i, w in plan.weights.items()
        }
        steps += [
            replace(s, inputs=tuple((n, first + i) for n, i in s.inputs), output=first + s.output,
                    more=tuple(first + i for i in s.more))
            for s in plan.steps
        ]  # fmt: skip
        outputs += [first + i for i in plan.outputs]
        roots += plan.graph.roots
    graph = Graph.of(roots[:1], name="together")
    return Plan(graph, tuple(values), tuple(steps), weights, tuple(outputs), {}, 0.0, 0.0)


def library_results(cases: Sequence[Case]) -> Iterator[tuple[Case, Array, str]]:
    """(case, first output of the kernel, text that names the case in messages) of each call of a library kernel. Every
    kernel accepts its call."""
    for row, call, _ in cases:
        assert row.applies is not None and row.applies(call), f"{row.name} of {call}"
    for case, (got, *_) in zip(cases, outputs_of(cases), strict=True):
        yield case, got, f"{case[0].name} of {case[1]}"


def outputs_of(cases: Sequence[Case]) -> list[tuple[Array, ...]]:
    """The outputs of each kernel on its operands. Calls of C kernels stay calls of their own: programs of equal kernels
    then have equal C texts, which are compiled once."""
    plans = [kernel_plan(template, call) for template, call, _ in cases]
    assert plans, "nothing is tested"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgramEmitter, "_join_calls", lambda self: None)
        emitted = emit_for(joined(plans), reuse_outputs=True)
    keys = {term.attr("name"): key for key, term in emitted.weights.items()}
    given = {f"k{number}_{n}": a for number, (_, _, operands) in enumerate(cases) for n, a in operands.items()}
    bind = executed(emitted.source, "together")["bind"]
    found = iter(bind({keys[n]: a for n, a in given.items() if n in keys})())
    return [tuple(next(found) for _ in plan.outputs) for plan in plans]
