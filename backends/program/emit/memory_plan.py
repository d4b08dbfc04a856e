"""Assigns the values of a program to offsets in one workspace, in which values that are never needed at the same time
share memory (memory plan).

Liveness over the flat list of steps, in-place reuse where a template allows it, then offsets by the greedy-by-size
method (Pisarchyk and Lee, 2020): largest buffer first, each into the tightest gap among the buffers live at the same
time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....egraph.ops.ops import Type
from ....egraph.types import dims
from ....egraph.types.dims import Dim
from ....egraph.types.dtypes import itemsize
from ....extract.model.kernel import contiguous
from ....extract.model.plan import Plan, Step

Array = np.ndarray[Any, Any]

ALIGNMENT = 64  # bytes: a cache line, and the width of an AVX-512 register


@dataclass(frozen=True)
class LiveBuffer:
    """One buffer to be placed in the workspace: its bytes, needed from step `first` to step `last`, inclusive."""

    size: int
    first: int
    last: int


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `alignment`, both in bytes."""
    return -(-size // alignment) * alignment


def place(buffers: Sequence[LiveBuffer], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Place `buffers` in a workspace; returns (offset of each buffer, size of the workspace), in bytes. Deterministic.

    Buffers that are live at a common step do not overlap. `alignment` in bytes.
    """
    n = len(buffers)
    offsets = np.zeros(n, np.int64)
    sizes = np.array([aligned(b.size, alignment) for b in buffers], np.int64)
    first, last = np.array([b.first for b in buffers], np.int64), np.array([b.last for b in buffers], np.int64)
    placed = np.zeros(n, bool)
    for i in sorted(range(n), key=lambda i: (-sizes[i], buffers[i].first, i)):
        others = np.flatnonzero(placed & (first <= last[i]) & (last >= first[i]) & (sizes > 0))
        others = others[np.argsort(offsets[others], kind="stable")]
        offsets[i] = _best_gap(offsets[others], sizes[others], int(sizes[i]))
        placed[i] = True
    return [int(o) for o in offsets], int((offsets + sizes).max(initial=0))


def _best_gap(offsets: Array, sizes: Array, size: int) -> int:
    """Start of the smallest gap of at least `size` bytes between blocks, which are sorted by offset; the end of the
    last block if there is no such gap."""
    if not len(offsets):
        return 0
    ends = np.maximum.accumulate(offsets + sizes)
    starts = np.concatenate(([0], ends[:-1]))
    gaps = offsets - starts
    fitting = np.flatnonzero(gaps >= size)
    return int(starts[fitting[np.argmin(gaps[fitting])]] if len(fitting) else ends[-1])


def nbytes(kind: Type, sizes: Mapping[str, int] | None = None) -> int:
    """Bytes of a value of type `kind`, whose free sizes have the values `sizes`."""
    shape = tuple(dims.bind(d, sizes or {}) for d in kind.shape)
    return Type(shape, kind.dtype).nbytes


def symbolic_bytes(kind: Type) -> Dim:
    """Bytes of a value of type `kind`, as an expression in its free sizes."""
    return dims.volume(kind.shape) * itemsize(kind.dtype)


@dataclass(frozen=True)
class Layout:
    """Memory plan of the values of a plan (a list of kernel calls); values are known by number.

    `root`: value -> value that owns its memory (a view's base). `buffer`: root -> its buffer, named by the number of
    the root that used the buffer first; the two differ after in-place reuse. `offsets`: buffer -> offset in the
    workspace. `scratch`: first output of a step -> (offset, bytes) of its scratch memory. `pinned`: new state value ->
    name of the state whose memory the value is written to. `last`: root -> last step that reads its memory. `size`:
    bytes of the workspace. `record`: buffer -> (bytes as text, first step, last step).
    """

    root: Mapping[int, int]
    buffer: Mapping[int, int]
    offsets: Mapping[int, int]
    pinned: Mapping[int, str]
    last: Mapping[int, int]
    size: int
    scratch: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    record: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)


def roots(plan: Plan) -> dict[int, int]:
    """For each value of `plan`, by number, the value that owns its memory: the value itself, or for a view the value at
    the end of its chain of bases."""
    found: dict[int, int] = {}
    for value in plan.values:
        number = value.id
        while plan.values[number].origin == "view":
            number = plan.values[number].base
        found[value.id] = number
    return found


def layout(
    plan: Plan, outside: Collection[int] = (), sizes: Mapping[str, int] | None = None, *, alignment: int = ALIGNMENT
) -> Layout:
    """Make the memory plan of all values that the kernels of `plan` write, and of each step's scratch memory.

    `outside`: values that are not in the workspace (results that kernels allocate, fresh outputs). `sizes`: values of
    free sizes. `alignment` in bytes.
    """
    root, end = roots(plan), len(plan.steps)
    last = _last_uses(plan, root, end)
    made = {v: i for i, s in enumerate(plan.steps) if not s.is_view for v in s.outputs}
    pinned = _pinned(plan, root, last, made)
    buffer = {v: v for v in made if v not in outside and v not in pinned}
    alive = {v: last.get(v, i) for v, i in made.items()}
    for i, step in enumerate(plan.steps):
        if step.output in buffer and not step.is_view:
            victim = _reusable(plan, step, i, root, last, buffer)
            if victim is not None:
                buffer[step.output] = buffer[victim]
                alive[buffer[victim]] = max(alive[buffer[victim]], alive[step.output])
    owners = [v for v in buffer if buffer[v] == v]
    spans = {v: (symbolic_bytes(plan.values[v].type), made[v], alive[v]) for v in owners}
    own = {s.output: b for s in plan.steps if (b := scratch_bytes(s, sizes))}
    buffers = [LiveBuffer(nbytes(plan.values[v].type, sizes), made[v], alive[v]) for v in owners]
    offsets, size = place([*buffers, *(LiveBuffer(b, made[v], made[v]) for v, b in own.items())], alignment)
    scratch = {v: (offset, own[v]) for v, offset in zip(own, offsets[len(owners) :])}
    record = {str(v): (str(b), i, j) for v, (b, i, j) in spans.items()}
    return Layout(root, buffer, dict(zip(owners, offsets)), pinned, last, size, scratch, record)


def scratch_bytes(step: Step, sizes: Mapping[str, int] | None = None) -> int | None:
    """Bytes of scratch memory that the kernel of `step` needs; None if it takes none. `sizes`: values of free sizes."""
    wanted = step.template.scratch
    if wanted is None or step.is_view:
        return None
    return dims.concrete((dims.bind(wanted(step.call), sizes or {}),))[0]


def _last_uses(plan: Plan, root: Mapping[int, int], end: int) -> dict[int, int]:
    last: dict[int, int] = {}
    for i, step in enumerate(plan.steps):
        if not step.is_view:
            for _, v in step.inputs:
                last[root[v]] = i
    for v in (*plan.outputs, *plan.updates.values()):
        last[root[v]] = end
    return last


def _same_place(plan: Plan, step: Step, operand: int, root: Mapping[int, int], output: int) -> bool:
    """Whether an output may overwrite an operand: both have the same type and strides, and no operand views the same
    memory in another layout."""
    a, b = plan.values[operand], plan.values[output]
    whole = plan.values[root[operand]]
    if (a.type, a.strides) != (b.type, b.strides) or symbolic_bytes(whole.type) != symbolic_bytes(a.type):
        return False
    shared = [plan.values[v] for _, v in step.inputs if root[v] == root[operand]]
    return all((v.type.shape, v.strides) == (a.type.shape, a.strides) for v in shared)


def _whole(plan: Plan, view: int, root: int) -> bool:
    """Whether a view covers its whole root with the same layout."""
    a, b = plan.values[view], plan.values[root]
    return (a.type, a.strides) == (b.type, b.strides)


def _inplace(step: Step) -> list[int]:
    return [v for o, v in step.inputs if o in step.template.inplace]


def _reusable(plan: Plan, step: Step, i: int, root: Mapping[int, int], last: Mapping[int, int],
              buffer: Mapping[int, int]) -> int | None:  # fmt: skip
    """Root value whose buffer step number `i` may overwrite, because the step is the value's last use; None without
    one."""
    for v in _inplace(step):
        victim = root[v]
        if (
            last[victim] == i
            and victim in buffer
            and _same_place(plan, step, v, root, step.output)
            and _all_inplace(step, victim, root, step.output)
        ):
            return victim
    return None


def _all_inplace(step: Step, victim: int, root: Mapping[int, int], output: int) -> bool:
    reused = step.template.reused_by(step.outputs.index(output))
    return all(o in reused for o, v in step.inputs if root[v] == victim)


def _pinned(plan: Plan, root: Mapping[int, int], last: Mapping[int, int], made: Mapping[int, int]) -> dict[int, str]:
    """New state value -> name of the state, for values that can be written directly to the state's memory, because no
    later step, or no step, reads the old value."""
    states = {v.name: v.id for v in plan.values if v.origin == "state"}
    found: dict[int, str] = {}
    for name, update in plan.updates.items():
        v = root[update]
        if v not in made or v in found or not _whole(plan, update, v):
            continue
        step, value, state = plan.steps[made[v]], plan.values[v], states.get(name)
        if not step.template.writes_out(step.call):
            continue
        if state is None:  # no kernel reads it
            if value.strides == contiguous(value.type.shape):  # type: ignore[arg-type]
                found[v] = name
            continue
        reads = [u for _, u in step.inputs if root[u] == state]
        legal = value.type == plan.values[state].type and value.strides == plan.values[state].strides
        if legal and last.get(state, -1) <= made[v] and _all_inplace(step, state, root, v):
            if all(_same_place(plan, step, u, root, v) for u in reads):
                found[v] = name
    return found
