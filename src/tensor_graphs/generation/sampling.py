"""Builds graphs that choose the next token from logits, over states, so that no step needs anything from the host.

States: `logits` [batch, vocabulary] float32 is read; `token` [batch, 1] int64, the chosen one, is written and is the
only output. `greedy` takes the largest logit. The other two draw from softmax(logits / temperature) by adding Gumbel
noise and taking the largest sum; `filtered` first drops all but the `top_k` largest logits, and the least likely tokens
beyond the cumulative probability `top_p`. The noise comes from Threefry, a counter-based generator: it depends on
`seed`, the row, the token and the number of earlier draws (`draws`), and on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..egraph.builders import builders as t
from ..egraph.composites import composite_ops as c
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor

Kind = Literal["greedy", "plain", "filtered"]
WORD = (1 << 32) - 1
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of Threefry-2x32, Salmon et al. 2011
_PARITY = 0x1BD11BDA
ROUNDS = 20
PARTS, LARGE = 128, 8192  # parts of a row of at least so many logits, in which a GPU looks for the largest


def threefry(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(first, second) word of the random bits of Threefry-2x32-20, for a key and a counter of two words each.

    Words are int64 tensors in 0..2**32-1, which all backends have exact arithmetic for.
    """
    keys = (*key, t.logical_xor(t.logical_xor(*key), _PARITY))
    x, y = counter[0] + key[0], t.logical_and(counter[1] + key[1], WORD)  # x: modulo 2**32 at the end
    for step in range(ROUNDS):
        x = x + y
        bits = _ROTATIONS[step // 4 % 2][step % 4]
        turned = t.logical_or(y * (1 << bits), t.floordiv(y, 1 << (32 - bits)))
        y = t.logical_and(t.logical_xor(turned, x), WORD)
        if step % 4 == 3:
            turn = step // 4 + 1
            x = x + keys[turn % 3]
            y = t.logical_and(y + keys[(turn + 1) % 3] + turn, WORD)
    return t.logical_and(x, WORD), y


def uniform(draws: Tensor, rows: int, columns: int) -> Tensor:
    """Random numbers in (0, 1], [rows, columns] float32, from the state `seed` and the number of earlier `draws` ([1,
    1] int64).

    The generator makes two words at a time: the first give the first half of a row, the second the other half.
    """
    seed = t.state("seed", (1, 2), "int64")
    key = (t.logical_and(t.slice_axis(seed, 1, 0, 1), WORD), t.logical_and(t.slice_axis(seed, 1, 1, 2), WORD))
    half = -(-columns // 2)
    place = t.iota((rows, half), 0) * half + t.iota((rows, half), 1)
    words = threefry(key, (place, t.logical_and(draws, WORD)))
    bits = t.slice_axis(t.concat(words, 1), 1, 0, columns)
    return (t.cast(bits, "float32") + 0.5) * 2.0**-32  # small numbers keep all of their bits


def gumbel(uniform: Tensor) -> Tensor:
    """Gumbel noise from random numbers in (0, 1]: the argmax of log(p) + noise is distributed with the probabilities
    p."""
    return -t.log(-t.log1p(-uniform))


def draws_state() -> Tensor:
    """State with the number of earlier draws, [1, 1] int64."""
    return t.state("draws", (1, 1), "int64")


@dataclass(frozen=True)
class Ranked:
    """Logits in falling order: `order` are their tokens, `logits` their values (-inf beyond `top_k`), `shares` their
    softmax (probabilities), and `kept` whether a token is within `top_p`. All [rows, vocabulary].
    """

    order: Tensor
    logits: Tensor
    shares: Tensor
    kept: Tensor

    @classmethod
    def of(cls, scaled: Tensor) -> Ranked:
        """Rank `scaled` (logits / temperature, [rows, vocabulary]), limited by the states `top_k` and `top_p`."""
        vocabulary = int(scaled.shape[1])  # type: ignore[arg-type]
        order = t.argsort(scaled, 1, descending=True)
        ranked = t.gather_elements(scaled, order, 1)
        within = t.lt(t.iota((1, vocabulary), 1), t.state("top_k", (1, 1), "int64"))
        ranked = t.where(within, ranked, _none())
        shares = c.softmax(ranked, axis=1)
        before = t.cumsum(shares, 1) - shares
        return cls(order, ranked, shares, t.lt(before, t.state("top_p", (1, 1), "float32")))


def _none() -> Tensor:
    return t.full((1, 1), float("-inf"))


def scaled(logits: Tensor) -> Tensor:
    """Logits divided by the state `temperature`."""
    return logits / t.state("temperature", (1, 1), "float32")


def distribution(kind: Kind, logits: Tensor) -> Tensor:
    """Probabilities [rows, vocabulary] float32 with which a sampler of a kind other than "greedy" draws tokens."""
    if kind == "plain":
        return c.softmax(scaled(logits), axis=1)
    ranked = Ranked.of(scaled(logits))
    kept = t.where(ranked.kept, ranked.shares, 0.0)
    return t.scatter_elements(t.zeros(logits.shape), ranked.order, kept / t.sum(kept, 1, keepdims=True), 1)


def first_largest(x: Tensor, parts: int) -> Tensor:
    """Index of the first largest element of each row of x [rows, columns], or of the first NaN: [rows, 1] int64.

    As an `argmax`, by reductions of `parts` parts of a row: a GPU's library gives a row to one block of threads, which
    takes 37 µs for 128,256 elements. Only for an x in memory: its elements are compared with their maximum, so that
    each must have the same bits wherever it is read.
    """
    rows, columns = (int(d) for d in x.shape)  # type: ignore[arg-type]
    width = -(-columns // parts)
    divided = t.reshape(t.pad(x, ((0, 0), (0, parts * width - columns)), float("-inf")), (rows, parts, width))
    most = t.max(t.max(divided, 2, keepdims=True), 1, keepdims=True)
    index = t.iota((rows, parts, width), 1) * width + t.iota((rows, parts, width), 2)
    found = t.where(t.logical_or(t.eq(divided, most), t.ne(divided, divided)), index, columns - 1)
    return t.reshape(t.min(t.min(found, 2, keepdims=True), 1, keepdims=True), (rows, 1))


def sampler(kind: Kind, batch: int, vocabulary: int, *, gpu: bool = False) -> Graph:
    """Graph that chooses one token of `vocabulary` per row: output `token` [batch] int64, which is the state `token` as
    well. `gpu`: whether it is for a GPU (`first_largest`)."""
    logits = t.state("logits", (batch, vocabulary), "float32")
    if kind == "greedy":
        token = first_largest(logits, PARTS) if gpu and vocabulary >= LARGE else t.argmax(logits, 1, keepdims=True)
        return Graph.of({"token": t.squeeze(token, 1)}, updates={"token": token}, name="sample-greedy")
    draws = draws_state()
    noise = gumbel(uniform(draws, batch, vocabulary))
    if kind == "plain":
        token = t.argmax(scaled(logits) + noise, 1, keepdims=True)
    else:
        ranked = Ranked.of(scaled(logits))
        kept = t.where(ranked.kept, ranked.logits + noise, _none())
        token = t.gather_elements(ranked.order, t.argmax(kept, 1, keepdims=True), 1)
    return Graph.of({"token": t.squeeze(token, 1)}, updates={"token": token, "draws": draws + 1}, name=f"sample-{kind}")
