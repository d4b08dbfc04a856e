"""Decodes after the prefill: the protocol of its rounds, and plain decoding, one further token per row (sequence of the
batch) and step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..costdb.keys.device import GPU_KIND
from .cached_model import CachedModel
from .programs import host_array, host_arrays
from .sampling import Kind
from .settings import Sampling

Array = np.ndarray[Any, Any]
STEPS = 2  # decode steps that are timed
POLL = 8  # decode steps between looks at their tokens on a GPU, where each look waits for the device


class Decoding(Protocol):
    """Protocol of a decoding method (plain or speculative): `begin` fills the caches with prompts, then each `round`
    returns further tokens.
    """

    def ready(self, longest: int, limit: int) -> None:
        """Make now the programs for prompts of up to `longest` tokens and up to `limit` new tokens a row (sequence of
        the batch)."""

    def begin(self, ids: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Fill the caches with prompts, given as token ids of each row (sequence of the batch), and set the sampler."""

    def round(self, running: Sequence[int], most: int) -> list[list[int]]:
        """Compute and return further tokens of each row (sequence of the batch), at least one. `running`: indices of
        the rows that have not ended; each of these needs at most `most` further tokens."""

    def logits(self, index: int) -> Array:
        """Copy of the logits from which the last round chose the token `index` of each row (sequence of the batch),
        [batch, vocabulary] float32; on a GPU those of the round's last step, up to `POLL` - 1 later."""

    @property
    def acceptance(self) -> float:
        """Share of proposed tokens that were accepted; nan if none were proposed."""

    @property
    def drafting(self) -> str:
        """The reason, for the report, why decoding with the draft model (a small model that proposes tokens) is slower
        than without; empty if it is faster, or there is no draft model."""


@dataclass
class PlainDecoding:
    """Decoding without a draft model: one token per row (sequence of the batch) and step; on a GPU, several steps a
    round."""

    model: CachedModel
    kind: Kind
    lengths: list[int] = field(default_factory=list)  # tokens of each row in the caches
    pending: list[int] = field(default_factory=list)  # the next token of each row, not in the caches yet

    @property
    def acceptance(self) -> float:
        """nan: there are no proposals (`Decoding.acceptance`)."""
        return float("nan")

    drafting = ""  # (`Decoding.drafting`)

    def ready(self, longest: int, limit: int) -> None:
        """Make the programs for sampling and, for a `limit` above one new token, for a decode step now. `longest`: the
        prompts' greatest length, not used here (`Decoding.ready`)."""
        self.model.programs.sample(self.kind)
        if limit > 1:
            self.model.programs.decode()

    def begin(self, ids: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Fill the caches with prompts, and set the sampler (`Decoding.begin`)."""
        self.lengths, self.pending = self.model.prefill(ids), []
        set_sampler(self.model, sampling)

    def round(self, running: Sequence[int], most: int) -> list[list[int]]:
        """Compute and return further tokens of each row (sequence of the batch), equally many and at most `most`
        (`Decoding.round`)."""
        programs = self.model.programs
        sample = programs.sample(self.kind)
        count = POLL if sample.tensors.startswith(GPU_KIND) else 1
        ahead = []
        for step in range(min(count, most) if self.pending else 1):
            if step or self.pending:
                programs.decode().flat_near()
            ahead.append(sample.flat_near()[0])
        found = [[int(v) for v in x] for x in host_arrays(ahead)]
        for tokens in found:
            self._note(tokens)
        return [list(column) for column in zip(*found)]

    def logits(self, index: int) -> Array:
        """Copy of the logits of the last step (`Decoding.logits`)."""
        return self.model.programs.get("logits")

    def step_seconds(self) -> float:
        """Seconds of a decode step, measured at the first call for a model.

        The measurement changes nothing but keys and values behind each row's length, which the next step overwrites.
        """
        model = self.model
        if model.step_s is None:
            programs, taken = model.programs, list[float]()
            before = {name: (value := programs.get(name), value.dtype.name) for name in ("length", "logits")}
            for _ in range(1 + STEPS):  # the first call may prepare weights
                for name, (value, dtype) in before.items():
                    programs.set(name, value, dtype)
                begun = time.perf_counter()
                host_array(programs.decode().flat_near()[0])
                taken.append(time.perf_counter() - begun)
            for name, (value, dtype) in before.items():
                programs.set(name, value, dtype)
            model.step_s = min(taken[1:])
        return model.step_s

    def _note(self, tokens: list[int]) -> None:
        """Record one step: the pending tokens were written to the caches, and `tokens` are pending."""
        for row, token in enumerate(self.pending):
            at = min(self.lengths[row], self.model.caches.capacity - 1)
            self.model.rows[row].write(at, [token])
            self.lengths[row] += 1
        self.pending = tokens


def set_sampler(model: CachedModel, sampling: Sampling, key: int = 0) -> None:
    """Set the states of a model's samplers to `sampling`. Samplers with different values of `key` draw
    independently."""
    for name, (value, dtype) in sampling.states(model.programs.vocabulary, key).items():
        model.programs.set(name, value, dtype)


__all__ = ["Decoding", "PlainDecoding", "set_sampler"]
