"""Holds a decoder with its programs and records which tokens its caches hold: prefill of prompts, and reuse of their
common beginning.

Prompts of a batch may have different lengths: shorter ones are padded behind their end, and each row counts its own
positions, so that padding is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..models.huggingface.checkpoint import Config
from ..models.huggingface.step import Caches, ring_slack
from .programs import Programs

BUCKETS = (16, 64, 256)  # tokens of prefill programs: a prompt takes the smallest that holds it, else several steps
#: Further ones on a GPU, where reading the weights takes as long as computing 200 to 300 tokens.
GPU_BUCKETS = (512, 1024)
GPU_TOKENS = 4096  # most tokens of all rows in one of those steps, which bounds the memory of its activations
Array = np.ndarray[Any, Any]


def caches_of(config: Config, batch: int, capacity: int, *, gpu: bool = False) -> Caches:
    """Sizes of key-value caches: `batch` rows (sequences) of `capacity` tokens, with room for the largest prefill step:
    BUCKETS, and with `gpu` GPU_BUCKETS. Rings of layers with windows hold a window and a prefill step, and decode steps
    read them whole: with rings, prefill steps are not longer than BUCKETS."""
    caches = Caches(batch, capacity, min(BUCKETS[-1], capacity))
    more = [b for b in GPU_BUCKETS if gpu and batch * b <= GPU_TOKENS]
    if not more or ring_slack(config, caches) is not None:
        return caches
    return replace(caches, most=min(more[-1], capacity))


@dataclass
class HeldRow:
    """Tokens of one row (sequence of the batch) that the caches hold, by position (`tokens`), and the largest position
    written since position 0 was last written (`top`).

    Layers with sliding windows keep a ring of positions: keys and values far enough before that largest position are
    overwritten.
    """

    tokens: list[int] = field(default_factory=list)
    top: int = -1

    def write(self, start: int, tokens: Sequence[int], width: int = 0) -> None:
        """Record that `tokens` were written from position `start` on, followed by padding up to `width` positions in
        all.
        """
        self.tokens[start:] = tokens
        self.top = max(self.top if start else -1, start + max(width, len(tokens)) - 1)

    def overwrite(self, end: int, last: int) -> None:
        """Record that unknown tokens are written behind these, up to the position `end`; those beyond the position
        `last` are written there."""
        self.top = max(self.top, min(end, last))
        if end >= last:
            del self.tokens[last:]

    def common(self, prompt: Sequence[int]) -> int:
        """Number of tokens at the beginning of a prompt that the caches hold."""
        pairs = enumerate(zip(self.tokens, prompt))
        return next((i for i, (a, b) in pairs if a != b), min(len(self.tokens), len(prompt)))


@dataclass(frozen=True)
class PrefillPlan:
    """Steps of a prefill: tokens per step (`size`), the position at which each row (sequence of the batch) begins,
    number of steps."""

    size: int
    begins: Array
    steps: int


@dataclass
class CachedModel:
    """A decoder's programs and the contents of its caches. With `reuse`, a prefill computes only the tokens that the
    caches do not hold yet.
    """

    programs: Programs
    reuse: bool = False

    def __post_init__(self) -> None:
        self.caches = self.programs.caches
        self._slack = ring_slack(self.programs.folder.config, self.caches)
        self.rows: list[HeldRow] = []  # made by the first prefill
        self.step_s: float | None = None  # seconds of a decode step, once measured (`PlainDecoding.step_seconds`)
        self._unknown = False  # whether the caches may hold NaN
        self.computed = 0  # tokens of a row that the last prefill computed, padding included

    def forget(self) -> None:
        """Treat the caches as empty: after a failure their contents are unknown. NaN at positions that no token sees
        would still reach the products of attention, so the next prefill fills them with zeros first."""
        self.rows, self._unknown = [], True

    @property
    def buckets(self) -> tuple[int, ...]:
        """Numbers of prompt tokens for which prefill programs are made."""
        most = self.caches.most
        return (*(b for b in (*BUCKETS, *GPU_BUCKETS) if b < most), most)

    def ready(self, ids: Sequence[Sequence[int]]) -> None:
        """Make now the programs that a prefill of these prompts (token ids of each row) needs."""
        plan = self.plan(ids)
        for step in range(min(plan.steps, 2)):
            self._program(plan, step)

    def _program(self, plan: PrefillPlan, step: int) -> Any:
        return self.programs.prefill(plan.size, fresh=not step and not plan.begins.any())

    def plan(self, ids: Sequence[Sequence[int]]) -> PrefillPlan:
        """The prefill with the fewest computed tokens: from position 0, or from the position up to which the caches
        hold each prompt."""
        lengths = np.array([len(p) for p in ids])
        whole = self._plan(lengths, np.zeros_like(lengths), self.buckets)
        if not self.reuse or not self.rows:
            return whole
        rows = self.rows[: len(ids)]
        held = [row.common(prompt[:-1]) for row, prompt in zip(rows, ids, strict=True)]
        for size in self.buckets:
            begins = np.minimum(held, self.caches.capacity - size)
            if self._slack is not None:
                begins = np.where(np.array([row.top for row in rows]) - self._slack <= begins, begins, 0)
            found = self._plan(lengths, begins, (size,))
            if found.steps == 1:
                break
        return found if found.size * found.steps < whole.size * whole.steps else whole

    @staticmethod
    def _plan(lengths: Array, begins: Array, sizes: Sequence[int]) -> PrefillPlan:
        longest = int((lengths - begins).max())
        size = next((b for b in sizes if b >= longest), sizes[-1])
        return PrefillPlan(size, begins, -(-longest // size))

    def prefill(self, ids: Sequence[Sequence[int]]) -> list[int]:
        """Fill the caches with prompts; afterwards the states `logits` and `length` are those of each row's last token.

        Returns the number of tokens of each row (sequence of the batch). Rows without a prompt get a single token. A
        prompt longer than the largest bucket takes several steps; a row that ends before the others repeats its last
        tokens, which changes nothing.
        """
        if self._unknown:
            self.programs.clear(("keys.", "values."))
            self._unknown = False
        plan, more = self.plan(ids), self.caches.batch - len(ids)
        prompts = [*ids, *([ids[0][:1]] * more)]
        begins, lengths = np.pad(plan.begins, (0, more)), np.array([len(p) for p in prompts])
        self.rows = self.rows or [HeldRow() for _ in prompts]
        self.computed = plan.size * plan.steps
        for step in range(plan.steps):
            start = np.minimum(begins + step * plan.size, np.maximum(lengths - plan.size, begins))
            chunk = np.zeros((len(prompts), plan.size), np.int64)
            parts = [prompt[at : at + plan.size] for prompt, at in zip(prompts, start)]
            for row, part in enumerate(parts):
                chunk[row, : len(part)] = part
            program = self._program(plan, step)
            values = {"input_ids": chunk, "start": start, "last": np.minimum(lengths - start, plan.size) - 1}
            program.flat_near(*(np.asarray(values[n], np.int64) for n in program.input_names))
            for held, at, part in zip(self.rows, start, parts):
                held.write(int(at), part, plan.size)
        return [len(p) for p in prompts]


__all__ = ["BUCKETS", "CachedModel", "HeldRow", "PrefillPlan", "caches_of"]
