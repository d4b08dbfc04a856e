"""Runs a program on named values, for verification and timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from threading import Thread
from typing import Any

import numpy as np

from ...backends.program.launch.launch_order import order_problems
from ...backends.program.program import Program
from ...backends.runtime.marshalling import is_torch
from ...costdb.keys.device import GPU_KIND
from ...egraph.ir.graph import Graph
from ...errors import UnusableKernelsError, VerificationError


def renamed(graph: Graph, work: Graph) -> Graph:
    """`work`, the graph that `graph` was optimized to, with the names and the result structure of `graph` (the
    signature of a program).
    """
    return replace(work, names=graph.names, structure=graph.structure, name=graph.name)


def run_flat(program: Program, values: Mapping[str, Any]) -> list[Any]:
    """Run a program on named inputs and states; returns its outputs, then its updated states, as a flat list.

    Returns tensors on the program's device if any of `values` is a tensor, else arrays.
    """
    program.bind()
    for name in program.states:
        if name in values:  # a state that is only written has no value before
            program.set_state(name, values[name])
    results = program.flat(*(values[n] for n in program.input_names))
    updated = list(program.plan.updates) if program.plan else []
    if not any(map(is_torch, values.values())):
        return [*results, *map(program.get_state, updated)]
    program.wait(f"running {program.manifest.name}")
    return [*results, *(program.states[n].clone() for n in updated)]


def compiled_beside(program: Program) -> Callable[[float | None], bool]:
    """Begin to compile the C kernels of a program; returns a function that waits for the end, at most so many seconds
    (None: as long as it takes), and returns whether it has come.

    For the time in which the references of a verification are computed. The function raises UnusableKernelsError if the
    compiler fails; other errors are raised when the program is bound.
    """
    failed: list[UnusableKernelsError] = []

    def compiled() -> None:
        try:
            program.compile()
        except UnusableKernelsError as error:  # not tried again when the program is bound
            failed.append(error)
        except Exception:
            return

    def ended(seconds: float | None) -> bool:
        thread.join(seconds)
        if failed:
            raise failed[0]
        return not thread.is_alive()

    thread = Thread(target=copy_context().run, args=(compiled,), name="compiling", daemon=True)
    thread.start()
    return ended


def check_order(program: Program) -> None:
    """Raise VerificationError if a kernel of a GPU program may read memory before the kernel that writes it has ended
    (`launch_order.py`). Programs with free sizes are not checked."""
    if has_recorded_calls(program) and not program.manifest.sizes and (problems := order_problems(program.source)):
        raise VerificationError(problems[0], where=program.manifest.name, hint="report this with the model")


def run_first(program: Program, values: Mapping[str, Any]) -> list[Any]:
    """Run a program on named inputs and states, on memory filled with NaN (`Program.poisoned`), so that a program on a
    GPU that reads what it has not written gives NaN. Returns its outputs, then its updated states, as a list. For the
    first run of a verification."""
    with program.poisoned():
        return run_flat(program, values)


def run_again(
    program: Program, values: Mapping[str, Any], alone: bool, ended: Callable[[], bool]
) -> Iterator[list[Any] | None]:
    """Outputs of later calls on the same values, as `run_flat` gives them. None, and no more, where `ended()`, asked
    before each call, says that no time is left.

    Calls on other values are between them, so that no memory holds the right results of an earlier call. On a GPU,
    later calls launch kernels in other ways than the first one: from a recorded CUDA graph, by the driver, by a C
    function. The first of the later calls is on poisoned memory as well. Ends early where the device's memory does not
    suffice. On a CPU one later call if verification is on this input `alone`, else none: further inputs are later
    calls.
    """
    if not has_recorded_calls(program):
        if alone and ended():
            yield None
        elif alone:
            run_flat(program, {name: _rolled(x) for name, x in values.items()})
            yield run_flat(program, values)
        return
    import torch

    with suppress(torch.OutOfMemoryError):
        other = {name: _rolled(x) for name, x in values.items()}
        recording = (run_flat, other), (run_flat, other)  # records the launches, and makes a direct function
        for run, given in (*recording, (run_first, values), (run_flat, other), (run_flat, values)):
            if ended():
                yield None
                return
            found = run(program, given)
            if given is values:
                yield found


def has_recorded_calls(program: Program) -> bool:
    """Whether later calls of a program launch kernels in other ways than the first one."""
    return program.tensors.partition(":")[0] == GPU_KIND


def _rolled(x: Any) -> Any:
    """An array or tensor with its elements one place further: other values in the same range."""
    return x.roll(1) if is_torch(x) else np.roll(x, 1)


__all__ = ["check_order", "compiled_beside", "has_recorded_calls", "renamed", "run_again", "run_first", "run_flat"]
