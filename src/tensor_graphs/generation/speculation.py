"""Decodes speculatively: in rounds, a draft model proposes tokens and one step of the large model verifies them.

Refused tokens need no undoing: their keys and values lie behind the row's length, where no token sees them, and the
next round overwrites them. Rings of layers with windows keep enough positions beyond the window (`Cached`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..models.huggingface.step import Folder, positions_of, refuse_wrong_weights
from .cached_model import CachedModel
from .decoding import Array, PlainDecoding, set_sampler
from .programs import Programs, host_array
from .settings import Sampling

TRIAL = 4  # rounds after the first one, which may prepare weights, before a draft is judged
RECENT = 16  # last rounds whose tokens a second decide whether a draft is kept
NOISE = 1.05  # factor by which plain decoding must be faster before a draft is given up
DRAFT_KEY = 0x5BD1E995  # changes the seed of a draft model, whose draws must not depend on those of the large one


def draft_model(folder: Folder, model: CachedModel, count: int) -> CachedModel:
    """Load the model in `folder` as the draft model of `model` (it proposes tokens), over caches of the same sizes.

    Raises UsageError unless it has the same vocabulary, enough positions, and room for `count` proposals in a step; its
    folder raises the same errors as that of a `Generator`.
    """
    own, caches = model.programs, model.caches
    vocabulary, positions = folder.config.size("vocab_size"), positions_of(folder.config)
    if vocabulary != own.vocabulary:
        raise UsageError(
            f"the draft has a vocabulary of {vocabulary} tokens, the model one of {own.vocabulary}",
            where=folder.where, hint="a draft model needs the tokenizer of the model",
        )  # fmt: skip
    if positions < caches.capacity:
        raise UsageError(
            f"the draft model has {positions} positions, fewer than max_length={caches.capacity}", where=folder.where
        )
    if count + 1 > caches.most:
        raise UsageError(
            f"invalid argument draft_tokens={count}",
            hint=f"a round of this generator has at most {caches.most - 1} proposals",
        )
    refuse_wrong_weights(folder, caches)
    programs = Programs(folder, caches, vocabulary, own.budget, own.options, prefix="draft-")
    return CachedModel(programs, model.reuse)


@dataclass
class SpeculativeDecoding:
    """Decoding with a draft model that proposes `count` tokens a round (speculation_graphs.py).

    Decoding continues without the draft once a round might exceed the caches. Greedy decoding also gives it
    up if the last RECENT rounds, after at least TRIAL rounds, gave fewer tokens a second than plain steps. Random
    sampling keeps the draft, because equal seeds must draw equal tokens.
    """

    plain: PlainDecoding
    draft: CachedModel
    count: int
    _previous: list[int] = field(default_factory=list)  # the token before the pending one of each row
    _drafted: bool = False  # whether the last round used the draft
    _proposed: int = 0
    _accepted: int = 0
    _rounds: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=RECENT)
    )  # (seconds, tokens of a row)
    _ended: bool = False  # whether the rest is decoded without the draft
    drafting: str = ""  # (`Decoding.drafting`)

    @property
    def acceptance(self) -> float:
        """Share of proposed tokens that were accepted (`Decoding.acceptance`)."""
        return self._accepted / self._proposed if self._proposed else float("nan")

    def ready(self, longest: int, limit: int) -> None:
        """Make the programs of both models now, the plain decode step included (`Decoding.ready`)."""
        own, draft, kind = self.plain.model.programs, self.draft.programs, self.plain.kind
        self.plain.ready(longest, limit)
        own.verify(self.count)
        own.accept(kind, self.count)
        shared = {name: name for name in ("previous", "proposals", "shares")}
        draft.borrow(own, {"target.token": "token", "target.length": "length", **shared})
        draft.follow()
        draft.propose(kind, self.count)
        if self.count > 1:
            draft.decode()

    def begin(self, ids: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Fill the caches of both models with prompts, and set the samplers (`Decoding.begin`)."""
        self.plain.begin(ids, sampling)
        self.draft.prefill(ids)
        set_sampler(self.draft, sampling, DRAFT_KEY)
        rows = self.plain.model.rows
        self._previous = [rows[i].tokens[n - 1] for i, n in enumerate(self.plain.lengths)]
        self.plain.model.programs.set("previous", [[v] for v in self._previous], "int64")

    def round(self, running: Sequence[int], most: int) -> list[list[int]]:
        """Run one round; returns the accepted proposals and a further token of each row (`Decoding.round`)."""
        plain, capacity = self.plain, self.plain.model.caches.capacity
        longest = max(plain.lengths[row] for row in running)
        self._ended = self._ended or longest + self.count + 1 > capacity
        if not plain.pending or self._ended:
            self._drafted = False
            return plain.round(running, most)
        plain.step_seconds()  # before the first round: where nothing is drafted yet
        begun = time.perf_counter()
        found = host_array(self._launch())
        took = time.perf_counter() - begun
        self._drafted = True
        tokens = [self._note(row, [int(v) for v in line]) for row, line in enumerate(found)]
        self._proposed += self.count * len(running)
        self._accepted += sum(len(tokens[row]) - 1 for row in running)
        if self._proposed > self.count * len(running):
            self._judge(took, sum(len(tokens[row]) for row in running) / len(running))
        return tokens

    def logits(self, index: int) -> Array:
        """Copy of the large model's logits (`Decoding.logits`). NaN logits of the draft change no token: its proposals
        are refused."""
        return self.plain.model.programs.get("scores")[:, index] if self._drafted else self.plain.logits(index)

    def _judge(self, seconds: float, tokens: float) -> None:
        """Record a round that took `seconds` and gave `tokens` per row; end drafting if the last rounds were slower
        than plain decoding.
        """
        self._rounds.append((seconds, tokens))
        took, made = (sum(column) for column in zip(*self._rounds))
        plain = self.plain.step_seconds()
        if len(self._rounds) >= TRIAL and took > NOISE * plain * made:
            self._ended, count = self.plain.kind == "greedy", len(self._rounds)
            self.drafting = (
                f"the draft {'was not used further' if self._ended else 'does not pay'}: {1e3 * took / made:.3g} ms a token with it "
                f"in {count} rounds of {made / count:.2g} tokens, {1e3 * plain:.3g} ms without"
            )

    def _launch(self) -> Any:
        """Run the programs of a round; returns the output of `acceptor`, [batch, count + 2] int64."""
        own, draft, kind = self.plain.model.programs, self.draft.programs, self.plain.kind
        draft.follow().flat_near()
        draft.propose(kind, self.count).flat_near()
        for _ in range(self.count - 1):
            draft.decode().flat_near()
            draft.propose(kind, self.count).flat_near()
        own.verify(self.count).flat_near()
        return own.accept(kind, self.count).flat_near()[0]

    def _note(self, row: int, line: list[int]) -> list[int]:
        """Record a round of a row, given its `line` of `acceptor`'s output; returns the row's further tokens. Rows that
        have ended may be at the end of the caches, where steps write their last positions again.
        """
        plain, capacity = self.plain, self.plain.model.caches.capacity
        *proposals, further, accepted = line
        at, chain = plain.lengths[row], [plain.pending[row], *proposals]
        plain.model.rows[row].write(min(at, capacity - len(chain)), chain)
        held = self.draft.rows[row]
        held.write(max(min(at - 1, capacity - 2), 0), [self._previous[row], chain[0]])
        for later, token in enumerate(proposals[:-1], at + 1):
            held.write(min(later, capacity - 1), [token])
        self._previous[row], plain.pending[row], plain.lengths[row] = chain[accepted], further, at + accepted + 1
        return [*proposals[:accepted], further]


__all__ = ["SpeculativeDecoding", "draft_model"]
