"""Defines the two ways in which a decoder sees its tokens: a whole sequence, or the next tokens of sequences in
key-value caches.

A `TokenAccess` gives the token ids and their positions, splits and merges attention heads, and attends. Layers are
stated once in terms of it (decoder.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, dim
from .layers import heads, joined


@dataclass(frozen=True)
class Scoring:
    """Options of a layer's attention.

    `scale`: factor on scores. `window`: number of latest positions that a token sees; 0: all. `softcap`: cap c, which
    turns a score s into c * tanh(s / c); 0: none. `sinks`: a learned extra score per query head, or None.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None


class TokenAccess(Protocol):
    """Protocol of a decoder's view of its tokens: ids, positions, attention over whole or cached sequences."""

    ids: Tensor

    @property
    def length(self) -> Dim:
        """Largest number of tokens in a sequence."""

    def positions(self) -> Tensor:
        """Positions of the tokens, [T, 1] or [B, T, 1]."""

    def by_position(self, x: Tensor) -> Tensor:
        """The rows of a table [positions, n] at the tokens' positions, [.., T, n]."""

    def table(self, x: Tensor, grouped: bool) -> Tensor:
        """The table `x` [.., T, n] (from `by_position`) with axes of size 1 inserted before T, so that it broadcasts
        with attention heads as `split` returns them: [.., 1, T, n].

        `grouped`: the heads have an axis for the query heads of a group, so that two axes may be needed.
        """

    def split(self, x: Tensor, groups: int, each: int, size: int) -> Tensor:
        """Split x [B, T, groups * max(each, 1) * size] into attention heads: `groups` key-value heads with `each` query
        heads; each = 0: no axis for the heads of a group."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Causal attention of heads q, k, v as `split` returns them; the result has merged heads, [B, T, features].

        `layer`: number of the layer, which names its caches.
        """

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of x [B, T, hidden] whose logits are wanted: [B, T, hidden] or [B, hidden]."""


def weighted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scoring: Scoring) -> Tensor:
    """Attention of heads q, k, v (as `TokenAccess.split` returns them) with an additive mask, and with the extra scores
    `scoring.sinks` if there are some.

    Such an extra score takes part in the softmax and has no value.
    """
    if scoring.sinks is None:
        return c.masked_attention(q, k, v, mask, scale=scoring.scale, softcap=scoring.softcap)
    scores = t.matmul(q, t.transpose(k)) * scoring.scale + mask
    sink = t.broadcast_to(scoring.sinks, (*scores.shape[:-1], 1))
    shares = c.softmax(t.concat([scores, sink], -1), axis=scores.rank - 1)
    return t.matmul(t.slice_axis(shares, -1, 0, scores.shape[-1]), v)


@dataclass
class WholeSequence:
    """Token access to whole sequences `ids` [batch, length] from position 0 on, attended causally without caches."""

    ids: Tensor

    @staticmethod
    def of_any_length(most: int) -> WholeSequence:
        """Input `input_ids` [batch, sequence], int64; both axes are free, the sequence is at most `most`."""
        return WholeSequence(t.input("input_ids", (dim("batch"), dim("sequence", max=most)), "int64"))

    @property
    def length(self) -> Dim:
        """Number of tokens in a sequence."""
        return self.ids.shape[1]

    def positions(self) -> Tensor:
        """Positions of the tokens, [T, 1] or [B, T, 1] (`TokenAccess.positions`)."""
        return t.iota((self.length, 1), 0)

    def by_position(self, x: Tensor) -> Tensor:
        """The rows of a table [positions, n] at the tokens' positions, [.., T, n] (`TokenAccess.by_position`)."""
        return t.slice_axis(x, 0, 0, self.length)

    def table(self, x: Tensor, grouped: bool) -> Tensor:
        """A table [.., T, n] by position, with axes of size 1 so that it broadcasts with the heads that `split`
        returns. `grouped`: they have an axis for the query heads of a group."""
        return t.with_rank(x, 5 if grouped else 4)

    def split(self, x: Tensor, groups: int, each: int, size: int) -> Tensor:
        """Attention heads of x [B, T, groups * max(each, 1) * size] (`TokenAccess.split`)."""
        return heads(x, groups, each, size)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Causal attention of the heads q, k, v as `split` returns them; the result has merged heads, [B, T, features].
        `layer` is not used, since there are no caches."""
        s = scoring
        if s.sinks is None:
            return joined(c.attention(q, k, v, scale=s.scale, causal=True, window=s.window, softcap=s.softcap))
        mask = c.causal_mask(self.length, self.length, True, s.window, q.dtype)
        sinks = t.reshape(s.sinks, (*q.shape[1 : q.rank - 2], 1, 1))
        return joined(weighted(q, k, v, t.with_rank(mask, q.rank), Scoring(s.scale, sinks=sinks)))

    def wanted(self, x: Tensor) -> Tensor:
        """All rows of x [B, T, hidden]: logits of every token are wanted (`TokenAccess.wanted`)."""
        return x


def cache_positions(window: int, capacity: int, most: int) -> int:
    """Number of positions that a layer keeps in its cache: `capacity`, or those of a ring (`Cached`).

    `window`: tokens that a token attends to, 0 for all. `most`: tokens of a step. A ring has at least
    `window + most - 1` positions, rounded up to a multiple of about an eighth of that (a power of two), because kernels
    split the positions into equal parts.
    """
    if not window:
        return capacity
    least = window + most - 1
    step = max(1, 1 << (least.bit_length() - 4)) if least > 8 else 1
    return min(capacity, -(-least // step) * step)


@dataclass
class Cached:
    """Token access to the next tokens `ids` [B, T] of each row.

    Keys and values are written to caches before they are attended to.

    `start` [B] is the position of a row's first token, or None: all rows start at 0. It is limited so that the tokens
    fit into `capacity` positions. `last` [B]: index of the token of each row whose logits are wanted; None: the last
    token, or with `every` all tokens. Rows may be padded behind their last token: no token depends on later ones, and
    the row's next tokens overwrite the padding. A layer with a window keeps at least `window + most - 1` positions, a
    ring, if these are fewer than `capacity`; `most` is the largest number of tokens that any program over the same
    caches takes at once. States: `keys.N` and `values.N` [B, kv heads, positions, head size], N the layer. `updates`:
    their values after the call, by name. `masks`: masks made so far, by (window, whether the cache is a ring).
    """

    ids: Tensor
    capacity: int
    most: int
    start: Tensor | None = None
    last: Tensor | None = None
    every: bool = False
    updates: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch, self.tokens = (int(d) for d in self.ids.shape)  # type: ignore[arg-type]
        self.batch = batch
        if self.start is not None:  # a limit on both sides: a window alone does not bound the position
            self.start = t.maximum(t.minimum(self.start, self.capacity - self.tokens), 0)

    @property
    def length(self) -> Dim:
        """Largest number of tokens in a sequence."""
        return self.capacity

    def positions(self) -> Tensor:
        """Positions of the tokens, [T, 1] or [B, T, 1] (`TokenAccess.positions`)."""
        here = t.iota((1, self.tokens, 1), 1)
        if self.start is None:
            return here
        start = t.reshape(self.start, (self.batch, 1, 1))
        return start if self.tokens == 1 else start + here

    def by_position(self, x: Tensor) -> Tensor:
        """The rows of a table [positions, n] at the tokens' positions, [.., T, n] (`TokenAccess.by_position`)."""
        if self.start is None:
            return t.slice_axis(x, 0, 0, self.tokens)
        return t.gather(x, t.squeeze(self.positions(), 2))

    def table(self, x: Tensor, grouped: bool) -> Tensor:
        """A table [.., T, n] by position, with axes of size 1 so that it broadcasts with the heads that `split`
        returns. `grouped`: they have an axis for the query heads of a group."""
        between = (1, 1) if grouped and not self._as_rows else (1,)
        return t.reshape(x, (x.shape[0], *between, self.tokens, x.shape[-1]))

    @property
    def _as_rows(self) -> bool:
        """Whether the query heads of a group are the rows of one product with its keys."""
        return self.tokens == 1 and self.start is not None

    def split(self, x: Tensor, groups: int, each: int, size: int) -> Tensor:
        """Split x [B, T, groups * max(each, 1) * size] into attention heads: `groups` key-value heads with `each` query
        heads (0: no such axis).

        With one token: [B, groups, each or 1, size].
        """
        return t.reshape(x, (self.batch, groups, max(each, 1), size)) if self._as_rows else heads(x, groups, each, size)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Write keys and values into the layer's caches, then attend causally; the result has merged heads, [B, T,
        features] (`TokenAccess.attend`)."""
        s = scoring
        keys, values = (self._written(f"{name}.{layer}", x, s.window) for name, x in (("keys", k), ("values", v)))
        if self.start is None:
            return WholeSequence(self.ids).attend(layer, q, k, v, s)
        keys, values = (x if q.rank == 4 else t.expand_dims(x, 2) for x in (keys, values))
        sinks = s.sinks
        if sinks is not None:
            shape = q.shape[1:-1] if self._as_rows else (*q.shape[1:-2], 1)
            sinks = t.reshape(sinks, (1, *shape, 1))
        mask = self._mask(s.window, q.dtype)
        mask = mask if q.rank == 4 else t.expand_dims(mask, 2)
        out = weighted(q, keys, values, mask, Scoring(s.scale, softcap=s.softcap, sinks=sinks))
        return t.reshape(out, (self.batch, 1, -1)) if self._as_rows else joined(out)

    def wanted(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] at the token `last` of each row, [B, hidden]; with `every` all of x
        (`TokenAccess.wanted`)."""
        if self.every:
            return x
        if self.last is None:
            return t.squeeze(t.slice_axis(x, 1, self.tokens - 1, self.tokens), 1)
        place = t.broadcast_to(t.reshape(self.last, (self.batch, 1, 1)), (self.batch, 1, x.shape[-1]))
        return t.squeeze(t.gather_elements(x, place, 1), 1)

    # ------------------------------------------------------------ caches
    def kept_positions(self, window: int) -> int:
        """Number of positions that a layer with attention windows of `window` positions (0: no limit) keeps in its
        cache."""
        return cache_positions(window, self.capacity, self.most)

    def _written(self, name: str, x: Tensor, window: int) -> Tensor:
        """The cache `name` with the new tokens' heads x written to it."""
        groups, size, room = x.shape[1], x.shape[-1], self.kept_positions(window)
        x = t.reshape(x, (self.batch, groups, self.tokens, size))
        place = t.reshape(self.positions(), (-1, 1, self.tokens, 1))
        if room < self.capacity:
            place = t.mod(place, room)
        cache = t.state(name, (self.batch, groups, room, size), x.dtype)
        self.updates[name] = t.scatter_elements(cache, t.broadcast_to(place, x.shape), x, 2)
        return self.updates[name]

    def _mask(self, window: int, dtype: str) -> Tensor:
        """Additive mask [B, 1, T, room]: -inf for positions that a token does not see."""
        room = self.kept_positions(window)
        key = (window, room < self.capacity)
        if key not in self.masks:
            assert self.start is not None
            own = t.reshape(self.positions(), (self.batch, 1, self.tokens, 1))
            held = t.iota((1, 1, 1, room), 3)
            if room < self.capacity:  # a ring: each place holds the latest position that falls on it
                newest = t.reshape(self.start, (self.batch, 1, 1, 1)) + (self.tokens - 1)
                held = newest - t.mod(newest - held + room, room)
            hidden = t.gt(held, own)
            if window and window < self.capacity:
                hidden = t.logical_or(hidden, t.le(held, own - window))
            if room < self.capacity:
                hidden = t.logical_or(hidden, t.lt(held, 0))
            self.masks[key] = hidden
        hidden = self.masks[key]
        return t.where(hidden, t.full((1,) * 4, float("-inf"), dtype), t.full((1,) * 4, 0.0, dtype))
