"""Which transformations of the kernel IR a generated kernel went through."""

from __future__ import annotations

from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.ir.loop_fusion import shared_maximum
from tensor_graphs.extract.model.kernel import Call


def transformations(template: GeneratedKernel, call: Call) -> tuple[str, ...]:
    """Names of the transformations (DEFER, ROLL, ...: docs/glossary.md) applied to the call's kernel, sorted; none if
    it cannot be lowered."""
    found = template.lower(call)
    if found is None:
        return ()
    names = {*found.kernel.builder.transformations}
    names |= {"ROLL" for e in found.kernel.reductions if shared_maximum(e, e.axis) is not None}
    names |= {"SPLIT"} if template.scheduled(call, found).scratch_parts > 1 else set()
    return tuple(sorted(names))


__all__ = ["transformations"]
