"""Worker process that lowers terms to kernels, for the generating backends.

A job is one lowering request of `Generator`: terms, layouts of operands and results, names of the weights. The worker
runs the same code as the parent (generator.py) and sends back the result. Messages are pickles over private pipes
between two processes of one program; none are stored in files.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from ...egraph.ir.graph import Tensor, make, topological
from ...extract.model.kernel import Call
from ...processes import memory_limits as host
from ..tuning.cpu_worker import die_with_parent

Flat = tuple[list[tuple[str, tuple[int, ...], dict[str, Any]]], list[int]]
# transposed weights, whether the output is channels-last, number of the precision
Form = tuple[tuple[str, ...], bool, int]
HEAD = struct.Struct("<I")
IDLE_S = 60  # seconds without input after which a worker ends


@dataclass(frozen=True)
class Job:
    """A fusion group to lower with the generators `names`; or, with `form`, calls of one form of one generator.

    `limit`: permitted relative error. `images`: names of operands and results that are images.
    """

    names: tuple[str, ...]
    terms: Flat
    calls: tuple[Call, ...]
    weights: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    limit: float = 0.0
    form: Form | None = None


# Per generator: (name, [(form, call key, pickled kernel or None)], answers). The answers are [(form, flops, size)] of
# the forms that compute the group; None for jobs with a `form`.
Reply = list[tuple[str, list[tuple[Form, Any, bytes | None]], list[tuple[Form, float, int]] | None]]


def flat(terms: Sequence[Tensor]) -> Flat:
    """Terms as (nodes in topological order with argument indices, indices of the terms).

    Needed because tensors compare by identity, which pickling does not preserve.
    """
    nodes = topological(terms)
    number = {t: n for n, t in enumerate(nodes)}
    return [(t.op, tuple([number[a] for a in t.args]), dict(t.attrs)) for t in nodes], [number[t] for t in terms]


def built(found: Flat) -> tuple[Tensor, ...]:
    """The terms that `flat` encoded."""
    made: list[Tensor] = []
    for op, args, attrs in found[0]:
        made.append(make(op, [made[a] for a in args], attrs))
    return tuple([made[n] for n in found[1]])


def answer(job: Job) -> Reply:
    """The reply to a job: lowers it with each of its generators."""
    from ..registry import backend
    from .generator import Generator, Lowerings

    lowerings = Lowerings(job.limit)
    found: Reply = []
    for name in job.names:
        generator = backend(name)
        assert isinstance(generator, Generator)
        lowering = lowerings.of(generator)
        answers = lowering.lower_all(built(job.terms), job)
        forms: dict[Any, Form] = {t: (turned, last, p.number) for (_, turned, last, p), t in lowering.known.items()}
        made = [
            (form, key, None if lowered is None else packed(lowered))
            for t, form in forms.items()
            for key, lowered in t.lowered.items()
        ]
        told = None if job.form else [(forms[t], effort, size) for t, effort, size in answers]
        found.append((name, made, told))
    return found


def packed(lowered: Any) -> bytes:
    """A lowered kernel (generated.Lowered) pickled as (kernel, shape, schedules)."""
    return pickle.dumps((lowered.kernel, lowered.shape, lowered.space), pickle.HIGHEST_PROTOCOL)


def read(stream: IO[bytes]) -> Any:
    """The next message of a stream. EOFError at the end of input."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return pickle.loads(stream.read(HEAD.unpack(head)[0]))


def message(data: object) -> bytes:
    """A message: pickled data with a length prefix."""
    body = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def main() -> None:
    """Answer lists of jobs until the input ends or `IDLE_S` seconds pass without input. SIGINT is left to the
    parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    host.limit_own_memory()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep prints out of the message stream
    gc.disable()  # short-lived process without garbage cycles
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
                replies.append((number, answer(job)))
            except MemoryError:  # the parent would run out, too: the group has no kernel
                replies.append((number, [(name, [], None if job.form else []) for name in job.names]))
            except Exception:  # the parent runs the job again and reports the error
                replies.append((number, []))
        out.write(message(replies))
        out.flush()


if __name__ == "__main__":
    main()
