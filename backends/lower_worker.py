"""The child process that reads terms as kernels: which of them some backends can generate, in which forms, and what each is.

A job is what `Generator` asks of one region: its terms, how operands and results lie, which operands are weights. It is answered
by the same code that would run in the parent (generator.py), and what that made is sent back. Messages are pickles between two
processes of one program, over pipes that nobody else has; nothing of them lies in files.
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
Form = tuple[tuple[str, ...], bool, int]  # transposed weights, whether channels lie innermost, the precision's number
HEAD = struct.Struct("<I")
IDLE_S = 60  # seconds after which a process that nobody needs ends


@dataclass(frozen=True)
class Job:
    """One region for the generators `names`, with what kernels may lose (`limit`) and which of its operands and results are `images`;
    or calls of one `form` of it for one of them."""

    names: tuple[str, ...]
    terms: Flat
    calls: tuple[Call, ...]
    weights: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    limit: float = 0.0
    form: Form | None = None


# Of each generator: forms, keys of calls, what these were lowered to (None: nothing); and for a region the forms that compute it, with
# their effort and size.
Reply = list[tuple[str, list[tuple[Form, Any, bytes | None]], list[tuple[Form, float, int]] | None]]


def flat(terms: Sequence[Tensor]) -> Flat:
    """Terms as a list of nodes over earlier ones, and which of these they are: tensors are equal only if they are the same."""
    nodes = topological(terms)
    number = {t: n for n, t in enumerate(nodes)}
    return [(t.op, tuple([number[a] for a in t.args]), dict(t.attrs)) for t in nodes], [number[t] for t in terms]


def built(found: Flat) -> tuple[Tensor, ...]:
    """The terms that `flat` has listed."""
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
    """A kernel with its shape and schedules (generated.Lowered)."""
    return pickle.dumps((lowered.kernel, lowered.shape, lowered.space), pickle.HIGHEST_PROTOCOL)


def read(stream: IO[bytes]) -> Any:
    """The next message. EOFError at the end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return pickle.loads(stream.read(HEAD.unpack(head)[0]))


def message(data: object) -> bytes:
    """Data as a message."""
    body = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def main() -> None:
    """Answer lists of jobs until the input ends, or nothing has come for a while. An interrupt is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that prints may disturb the messages
    gc.disable()  # a short life, and nothing to be found
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
            except Exception:  # the parent comes upon it itself, where it can be said what is the matter
                replies.append((number, []))
        out.write(message(replies))
        out.flush()


if __name__ == "__main__":
    main()
