"""Generated C kernels under AddressSanitizer and UndefinedBehaviorSanitizer: the short form of `python -m
tests.fuzz.sanitized`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c.emit.kernel import emit
from tensor_graphs.backends.c.emitter import CEmitter
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..fuzz.sanitized import Found, kernels_of, reports, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")


def test_kernels_stay_within_their_memory_and_a_planted_fault_is_found() -> None:
    found = [kernel for seed in range(6) for kernel in kernels_of(seed, 3)]
    assert len(found) > 4
    last = found[-1]
    result = next(iter(s.buffer for s in last.kernel.stores))
    past = math.prod(concrete(last.kernel.buffers[result].shape))
    wrong = last.text.rstrip().removesuffix("}") + f"    {result}[{past}] = 0;\n}}"
    planted = replace(last, name="planted", text=wrong.replace(last.name, "planted"))
    message = reports([*found, planted, replace(last, name="after", text=last.text.replace(last.name, "after"))])
    assert list(message) == ["planted"], message
    assert "AddressSanitizer" in message["planted"] or "runtime error" in message["planted"]


@pytest.mark.parametrize("op", ["gather", "gather_elements"])
def test_an_index_along_one_element_reads_that_element(op: str) -> None:
    """The axis of one element has the stride of the axis before it, whose size is no bound of the index."""
    picks = t.input("i", (7, 2, 3) if op == "gather_elements" else (2,), "int32")
    root = make(op, [t.input("x", (7, 1, 3)), picks], {"axis": 1})
    template, sizes = template_of(CEmitter(), root), {"x": (7, 1, 3), "i": concrete(picks.shape)}
    operands = {n: Operand(Type(s, "float32" if n == "x" else "int32"), contiguous(s)) for n, s in sizes.items()}
    call = Call(operands, Operand(root.type, contiguous(concrete(root.shape))), {})
    kernel = template.kernel(replace(call, schedule=next(iter(template.space(call)))))
    assert not reports([Found("along_one", emit(kernel, "along_one"), kernel, 0)])
