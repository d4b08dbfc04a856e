"""Worker process that lowers terms to kernels: which terms some backends can generate, in which forms.

A job is what `Generator` asks of one fusion group: its terms, the layouts of operands and results, which operands are
weights. The worker runs the same code as the parent (generator.py) and sends back the result. Messages are pickles over
private pipes between two processes of one program; none are stored in files.
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

from ..egraph.graph import Tensor, make, topological
from ..extract.kernel import Call
from .measure_worker import die_with_parent

Flat = tuple[list[tuple[str, tuple[int, ...], dict[str, Any]]], list[int]]
Form = tuple[tuple[str, ...], bool, int]  # transposed weights, whether channels are innermost, number of the precision
HEAD = struct.Struct("<I")
IDLE_S = 60  # seconds after which an idle worker ends


@dataclass(frozen=True)
class Job:
    """One fusion group for the generators `names`, with the permitted loss (`limit`) and the operands and results that
    are `images`; or calls of one `form` for one generator."""

    names: tuple[str, ...]
    terms: Flat
    calls: tuple[Call, ...]
    weights: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    limit: float = 0.0
    form: Form | None = None


# Per generator: (name, [(form, call key, packed kernel or None)], [(form, flops, size)] of the forms that compute a
# group, or None).
Reply = list[tuple[str, list[tuple[Form, Any, bytes | None]], list[tuple[Form, float, int]] | None]]


def flat(terms: Sequence[Tensor]) -> Flat:
    """Terms as a list of nodes over earlier ones, and the terms' indices: tensors are compared by identity, which
    pickles do not keep."""
    nodes = topological(terms)
    number = {t: n for n, t in enumerate(nodes)}
    return [(t.op, tuple([number[a] for a in t.args]), dict(t.attrs)) for t in nodes], [number[t] for t in terms]


def built(found: Flat) -> tuple[Tensor, ...]:
    """The terms listed by `flat`."""
    made: list[Tensor] = []
    for op, args, attrs in found[0]:
        made.append(make(op, [made[a] for a in args], attrs))
    return tuple([made[n] for n in found[1]])


def answer(job: Job) -> Reply:
    """What the generators made of a job."""
    from .generator import Generator, Lowerings
    from .registry import backend

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
    """A pickled kernel with its shape and schedules (generated.Lowered)."""
    return pickle.dumps((lowered.kernel, lowered.shape, lowered.space), pickle.HIGHEST_PROTOCOL)


def read(stream: IO[bytes]) -> Any:
    """The next message. EOFError at the end of input."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return pickle.loads(stream.read(HEAD.unpack(head)[0]))


def message(data: object) -> bytes:
    """A message with a length prefix."""
    body = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def main() -> None:
    """Answer lists of jobs until the input ends or nothing has arrived for `IDLE_S` seconds. Interrupts are left to the
    parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not disturb the messages
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
            except Exception:  # the parent runs the job again and reports the error
                replies.append((number, []))
        out.write(message(replies))
        out.flush()


if __name__ == "__main__":
    main()
