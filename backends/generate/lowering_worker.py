"""Lowers terms to kernels in a worker process, for the generating backends.

A job is one lowering request: terms, layouts of operands and results, names of the weights. The worker runs the same
code as the parent (lowerings.py) and sends back the lowered kernels. Messages are pickles over private pipes between
two processes of one program; none are stored in files.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ...processes import memory_limits as host
from ...processes.child import die_with_parent, yield_to_others
from ..machine import using_machine
from .emitter import Lowered, PackedLowered
from .lowering_jobs import Form, Job, Reply, framed, read, rebuilt_terms

if TYPE_CHECKING:
    from .template import GeneratedKernel

NICE = 2  # behind the search, before the compilers
IDLE_S = 60  # seconds without input after which a worker ends


def answer(job: Job) -> Reply:
    """Lower the terms of a job with each of its generators (backends); returns the reply to the parent."""
    from ..registry import backend
    from .generator import KernelGenerator
    from .lowerings import Lowerings

    lowerings = Lowerings(job.limit)
    found: Reply = []
    for name in job.names:
        generator = backend(name)
        assert isinstance(generator, KernelGenerator)  # jobs name generators only
        lowering = lowerings.of(generator)
        answers = lowering.lower_all(rebuilt_terms(job.terms), job)
        forms: dict[Any, Form] = {t: (turned, last, p.number) for (_, turned, last, p), t in lowering.known.items()}
        made = [(form, key, packed(t, lowered)) for t, form in forms.items() for key, lowered in t.lowered.items()]
        sized = None if job.form else [(forms[t], effort, size) for t, effort, size in answers]
        found.append((name, made, sized))
    return found


def load() -> None:
    """Import the generators, which takes as long as a hundred jobs, while there is no job yet."""
    from ..registry import backends
    from .lowerings import Lowerings  # noqa: F401

    backends()


def packed(template: GeneratedKernel, found: Lowered | PackedLowered | None) -> PackedLowered | None:
    """A lowered kernel of a template as it is sent."""
    if found is None or isinstance(found, PackedLowered):
        return found
    return PackedLowered.of(found, template.effort_of(found, template.emitter.parse(found.space[0])))


def main() -> None:
    """Run a worker process: say by an empty list of replies that it has started, then answer lists of jobs (terms to
    lower to kernels) until the input ends or `IDLE_S` seconds pass without input.

    SIGINT is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    yield_to_others(NICE)
    host.limit_own_memory()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep prints out of the message stream
    gc.disable()  # short-lived process without garbage cycles
    load()
    out.write(framed([]))
    out.flush()
    while True:
        signal.alarm(IDLE_S)
        try:
            jobs = read(sys.stdin.buffer)
        except EOFError:
            return
        signal.alarm(0)
        replies = []
        for number, job in jobs:
            try:
                with using_machine(job.machine) if job.machine is not None else nullcontext():
                    replies.append((number, answer(job)))
            except MemoryError:  # the parent would run out, too: the group has no kernel
                replies.append((number, [(name, [], None if job.form else []) for name in job.names]))
            except Exception:  # the parent runs the job again and reports the error
                replies.append((number, []))
        out.write(framed(replies))
        out.flush()


if __name__ == "__main__":
    main()
