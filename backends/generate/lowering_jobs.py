"""Defines the messages between the lowering pool and its worker processes: jobs, replies, and terms as flat lists."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from ...egraph.ir.tensor import Tensor, make, topological
from ...extract.model.kernel import Call
from ..machine import Machine
from .emitter import PackedLowered

Flat = tuple[list[tuple[str, tuple[int, ...], dict[str, Any]]], list[int]]


# transposed weights, whether the output is channels-last, number of the precision
Form = tuple[tuple[str, ...], bool, int]


HEAD = struct.Struct("<I")


@dataclass(frozen=True)
class Job:
    """Message to a lowering worker: terms that it is to lower to kernels.

    Without `form`: a fusion group's terms and its call, to be lowered by each of the generators (backends) `names`.
    With `form`: calls of one template (a kernel's pattern and code) at several operand types. `limit`: relative error
    that kernels may add by rounding operands. `weights`, `images`: names of operands, and of results, that are weights
    or images. `machine`: the GPU for which schedules are ranked; None for kernels of the CPU.
    """

    names: tuple[str, ...]
    terms: Flat
    calls: tuple[Call, ...]
    weights: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    limit: float = 0.0
    form: Form | None = None
    machine: Machine | None = None  # the GPU to schedule for; None for kernels of the CPU


# Per generator: (name, [(form, call key, packed kernel or None)], answers). The answers are [(form, flops, size)] of
# the forms that compute the group; None for jobs with a `form`.
Reply = list[tuple[str, list[tuple[Form, Any, PackedLowered | None]], list[tuple[Form, float, int]] | None]]


def flattened_terms(terms: Sequence[Tensor]) -> Flat:
    """The terms in a form that can be pickled: (nodes in topological order as (op, numbers of the operands,
    attributes), numbers of the terms).

    Tensors compare by identity, which pickling would not preserve.
    """
    nodes = topological(terms)
    number = {t: n for n, t in enumerate(nodes)}
    return [(t.op, tuple([number[a] for a in t.args]), dict(t.attrs)) for t in nodes], [number[t] for t in terms]


def rebuilt_terms(found: Flat) -> tuple[Tensor, ...]:
    """The terms that `flattened_terms` gave as lists."""
    made: list[Tensor] = []
    for op, args, attrs in found[0]:
        made.append(make(op, [made[a] for a in args], attrs))
    return tuple([made[n] for n in found[1]])


def read(stream: IO[bytes]) -> Any:
    """The next message of `stream`, unpickled. Raises EOFError at the end of input."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return pickle.loads(stream.read(HEAD.unpack(head)[0]))


def framed(data: object) -> bytes:
    """`data` as a message for a stream: pickled, after its length."""
    body = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body
