"""Decodes after the prefill: the protocol of its rounds, and plain decoding, one further token per row (sequence of the
batch) and step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..costdb.keys.device import GPU_KIND
from .cached_model import CachedModel
from .programs import host_array, later_arrays
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
        [batch, vocabulary] float32. On a GPU, where steps run ahead of the host, those of the latest step that has
        begun, which may be up to 2 `POLL` - 1 steps later."""

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
    round. If it `overlaps`, the steps of the next round begin before the tokens of the present one are looked at, so
    that the device does not wait for the host. A round of one step (on a CPU) never overlaps: its token is there at
    once, and beginning the next step before would delay it, and waste a step where the text ends.

    `under_way`: (number of steps, function that waits for their tokens) of each round that has begun, the oldest first.
    """

    model: CachedModel
    kind: Kind
    overlaps: bool = False
    lengths: list[int] = field(default_factory=list)  # tokens of each row in the caches
    pending: list[int] = field(default_factory=list)  # the next token of each row, not in the caches yet
    under_way: deque[tuple[int, Callable[[], list[Array]]]] = field(default_factory=deque)

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
        self.under_way.clear()
        set_sampler(self.model, sampling)

    def round(self, running: Sequence[int], most: int) -> list[list[int]]:
        """Compute and return further tokens of each row (sequence of the batch), equally many and at most `most`
        (`Decoding.round`)."""
        if not self.under_way:
            self._begin_steps(most)
        steps = self.under_way[0][0]
        if self.overlaps and 1 < steps < most:
            self._begin_steps(most - steps)
        _, taken = self.under_way.popleft()
        found = [[int(v) for v in x] for x in taken()]
        for tokens in found:
            self._note(tokens)
        return [list(column) for column in zip(*found)]

    def _begin_steps(self, most: int) -> None:
        """Give the device the next steps, at most `most`: one before any token is known, which follows from the
        prompt."""
        programs = self.model.programs
        sample, ahead = programs.sample(self.kind), []
        for step in range(min(self.steps(sample.tensors), most) if self.pending else 1):
            if step or self.pending:
                programs.decode().flat_near()
            ahead.append(sample.flat_near()[0])
        self.under_way.append((len(ahead), later_arrays(ahead)))

    def steps(self, device: str) -> int:
        """Number of steps of a round on a device."""
        return POLL if device.startswith(GPU_KIND) else 1

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
        last, begun = self.model.caches.capacity - 1, sum(steps for steps, _ in self.under_way)
        for row, token in enumerate(self.pending):
            self.model.rows[row].write(min(self.lengths[row], last), [token])
            self.lengths[row] += 1
            if begun:
                self.model.rows[row].overwrite(self.lengths[row] + begun - 1, last)
        self.pending = tokens


def set_sampler(model: CachedModel, sampling: Sampling, key: int = 0) -> None:
    """Set the states of a model's samplers to `sampling`. Samplers with different values of `key` draw
    independently."""
    for name, (value, dtype) in sampling.states(model.programs.vocabulary, key).items():
        model.programs.set(name, value, dtype)


__all__ = ["Decoding", "PlainDecoding", "set_sampler"]
