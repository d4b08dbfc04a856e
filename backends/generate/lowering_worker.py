"""Lowers terms to kernels in worker processes, for the generating backends.

A job is one lowering request: terms, layouts of operands and results, names of the weights. The worker runs the same
code as the parent (backend_lowering.py) and sends back the lowered kernels. Messages are pickles over private pipes
between two processes of one program; none are stored in files.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
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


def serve(source: int, target: int) -> None:
    """Say by an empty list of replies that this worker has started, then answer lists of jobs (terms to lower to
    kernels) from descriptor `source` on `target`, until the input ends or `IDLE_S` seconds pass without input."""
    with os.fdopen(source, "rb") as jobs_in, os.fdopen(target, "wb") as out:
        out.write(framed([]))
        out.flush()
        while True:
            signal.alarm(IDLE_S)
            try:
                jobs = read(jobs_in)
            except EOFError:
                return
            signal.alarm(0)
            out.write(framed([(number, answered(job)) for number, job in jobs]))
            out.flush()


def answered(job: Job) -> Reply:
    """The reply to a job; an empty one if it fails: the parent runs the job again and reports the error."""
    try:
        with using_machine(job.machine) if job.machine is not None else nullcontext():
            return answer(job)
    except MemoryError:  # the parent would run out, too: the group has no kernel
        return [(name, [], None if job.form else []) for name in job.names]
    except Exception:
        return []


def forked(pipes: Sequence[tuple[int, int]]) -> None:
    """Fork a worker for each pair of descriptors (jobs in, replies out), and close them here."""
    for n, pair in enumerate(pipes):
        if os.fork() == 0:
            try:
                die_with_parent()
                host.limit_own_memory()
                for other in pipes[n + 1 :]:
                    _close(other)
                serve(*pair)
            finally:
                os._exit(0)
        _close(pair)


def _close(pair: tuple[int, int]) -> None:
    for descriptor in pair:
        os.close(descriptor)


def main() -> None:
    """`lowering_worker SOURCE,TARGET ...`: import the generators once, fork a worker for each pair of descriptors, and
    wait for them. They import nothing, and share the memory of what is imported.

    SIGINT is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    yield_to_others(NICE)
    os.dup2(2, 1)  # prints of libraries
    gc.disable()  # short-lived processes without garbage cycles
    load()
    forked([(int(source), int(target)) for source, _, target in (x.partition(",") for x in sys.argv[1:])])
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
