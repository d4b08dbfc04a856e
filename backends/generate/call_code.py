"""Makes the code of a generated kernel's call in an emitted program: its statements, and the launches in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from ...extract.model.kernel import Call
from ..ir.source_text import literal
from ..lowering.split_reduction import COUNTERS, partial_layout
from .emitter import Launch, Lowered
from .schedule import Numbers

if TYPE_CHECKING:
    from .template import GeneratedKernel

COUNTING = f'''_counters = {{}}


def counters(device):
    """Counters of thread blocks that have stored their part of a tile, one per tile; zero between kernels."""
    if device not in _counters:
        _counters[device] = torch.zeros({COUNTERS}, dtype=torch.int32, device=device)
    return _counters[device]'''


CARRYING = '''def carried(x, out):
    """Copy x to out, unless they share memory: the elements that a scattering kernel does not write."""
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)'''


def stored_schedule(found: Lowered, call: Call) -> Numbers:
    """The schedule of `call` as parameter name -> integer; if the call has none, the best guess for its lowered kernel
    `found`."""
    return dict(call.schedule) or found.space[0]


def launches(template: GeneratedKernel, call: Call) -> Sequence[Launch]:
    """Emit the kernel of `template` for a call with its schedule, unless that has been done; returns its launches in
    execution order."""
    found = template.lower(call)
    assert found is not None
    schedule = stored_schedule(found, call)
    constant = [sorted(call.constant)] if call.constant else []
    key = repr((template.identity, call.operands, *call.outputs, sorted(schedule.items()), *constant))
    name = f"{found.shape.kind}_{blake2b(key.encode(), digest_size=5).hexdigest()}"
    if name not in found.made:  # source, code and scratch all call this
        known = replace(found, constant=call.constant) if call.constant else found
        found.made[name] = template.emitter.launches(known, schedule, name)
    return found.made[name]


def call_code(template: GeneratedKernel, call: Call) -> str:
    """The statements of a call: copies of the base operands of partially written outputs, or numbers in their place,
    then the launches."""
    names = dict(call.names)
    found = template.lower(call)
    assert found is not None
    parts = template.scheduled(call, found).scratch_parts
    if parts > 1:
        first, _ = found.halves(parts)
        for name, (start, size) in partial_layout(first.buffers)[0].items():
            names[name] = f"{names['scratch']}[{start}:{start + size}].view(torch.float32)"
        names["counters"] = f"counters({names['out']}.device)"
    pairs = [(names[base], names[output]) for output, base in template.bases.items()]
    kept = [f"carried({base}, {output})" for base, output in pairs if base != output and not template.emitter.carries]
    kept += [f"{names[output]}.fill_({literal(value)})" for output, value in template.fills.items()]
    return "\n".join([*kept, *(launch.call(names) for launch in launches(template, call))])
