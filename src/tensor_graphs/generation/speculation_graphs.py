"""Builds the graphs of speculative decoding: a draft model proposes tokens, one step of the large model computes the
logits after each of them, and the first ones that pass are accepted.

A round has the pending token of each row (chosen, not yet in the caches) and `count` proposals. States of both models:
`previous` [batch, 1], the token before the pending one; `proposals` [batch, count] int64; `shares` [batch, count,
vocabulary] float32, the probabilities with which these were drawn. Programs of the draft model know the large model's
`token` and `length` as `target.token` and `target.length`, and have `token`, `length` and `logits` of their own.

A proposal d drawn with probability q(d) is accepted with probability min(1, p(d) / q(d)), p being the large model's
distribution; the first one that is not is replaced by a draw from max(p - q, 0), and after all of them a further token
is drawn from p (Leviathan et al. 2023, Chen et al. 2023). So tokens have the large model's distribution, whatever the
draft proposes. `greedy` accepts proposals that are the most likely tokens.
"""

from __future__ import annotations

from dataclasses import replace

from ..egraph.builders import builders as t
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..models.huggingface.step import Caches, Folder, build_step
from .sampling import Kind, distribution, draws_state, gumbel, uniform


def follow_graph(folder: Folder, caches: Caches) -> Graph:
    """Graph of the draft model's first step of a round, over two tokens of each row (sequence of the batch): the
    pending token and the one before it, which is not in the draft's caches if all proposals of the last round were
    accepted.

    Output and states are those of a decode step.
    """
    batch = caches.batch
    length = t.state("target.length", (batch,), "int64")
    ids = t.concat([t.state("previous", (batch, 1), "int64"), t.state("target.token", (batch, 1), "int64")], 1)
    step = build_step(folder.config, folder.weights(), caches, 2, ids=ids, start=length - 1, wanted="last")
    after = length + 1
    logits = t.cast(step.outputs[0], "float32")
    return replace(
        step, outputs=(after,), names=("length",), structure={"length": 0},
        updates={**step.updates, "logits": logits, "length": after}, name=f"{step.name}-follow",
    )  # fmt: skip


def verify_graph(folder: Folder, caches: Caches, count: int) -> Graph:
    """Graph of the large model's step over the pending token and the proposals of each row.

    The state `scores` [batch, count + 1, vocabulary] float32 has the logits after each of them. Output: `written`
    [batch] int64, the number of tokens that are in the caches then, refused ones included.
    """
    batch = caches.batch
    length = t.state("length", (batch,), "int64")
    ids = t.concat([t.state("token", (batch, 1), "int64"), t.state("proposals", (batch, count), "int64")], 1)
    step = build_step(folder.config, folder.weights(), caches, count + 1, ids=ids, start=length, wanted="all")
    return replace(
        step, outputs=(length + count + 1,), names=("written",), structure={"written": 0},
        updates={**step.updates, "scores": t.cast(step.outputs[0], "float32")}, name=f"{step.name}-verify-{count}",
    )  # fmt: skip


def proposer(kind: Kind, batch: int, vocabulary: int, count: int) -> Graph:
    """Graph that chooses a proposal per row from the draft's logits: output `token` [batch] int64.

    It is the draft's state `token` as well, and is written into `proposals` at the index that follows from the lengths
    of both models.
    """
    logits = t.state("logits", (batch, vocabulary), "float32")
    place = t.state("length", (batch,), "int64") - t.state("target.length", (batch,), "int64") - 1
    place = t.reshape(t.maximum(t.minimum(place, count - 1), 0), (batch, 1))
    proposals = t.state("proposals", (batch, count), "int64")
    if kind == "greedy":
        token, updates = t.argmax(logits, 1, keepdims=True), dict[str, Tensor]()
    else:
        draws, shares = draws_state(), t.state("shares", (batch, count, vocabulary), "float32")
        own = distribution(kind, logits)
        token = t.argmax(t.log(own) + gumbel(uniform(draws, batch, vocabulary)), 1, keepdims=True)
        index = t.broadcast_to(t.expand_dims(place, 2), (batch, 1, vocabulary))
        updates = {"shares": t.scatter_elements(shares, index, t.expand_dims(own, 1), 1), "draws": draws + 1}
    updates |= {"token": token, "proposals": t.scatter_elements(proposals, place, token, 1)}
    return Graph.of({"token": t.squeeze(token, 1)}, updates=updates, name=f"propose-{kind}-{count}")


def acceptor(kind: Kind, batch: int, vocabulary: int, count: int) -> Graph:
    """Graph that accepts the first proposals of each row, up to the first one that fails, and chooses one further
    token, the new pending one.

    Output: `round` [batch, count + 2] int64: the proposals, the further token, the number of accepted proposals. The
    states `token`, `previous` and `length` are those after the round.
    """
    proposals = t.state("proposals", (batch, count), "int64")
    scores = t.state("scores", (batch, count + 1, vocabulary), "float32")
    updates = dict[str, Tensor]()
    if kind == "greedy":
        likely = t.argmax(scores, 2)
        accepted = _first(t.eq(t.slice_axis(likely, 1, 0, count), proposals))
        further = t.gather_elements(likely, accepted, 1)
    else:
        draws, shares = draws_state(), t.state("shares", (batch, count, vocabulary), "float32")
        random = uniform(draws, batch, vocabulary + count)
        wanted = t.reshape(distribution(kind, t.reshape(scores, (-1, vocabulary))), scores.shape)
        coins = t.slice_axis(random, 1, vocabulary, vocabulary + count)
        index = t.expand_dims(proposals, 2)
        p, q = (t.squeeze(t.gather_elements(x, index, 2), 2) for x in (t.slice_axis(wanted, 1, 0, count), shares))
        accepted = _first(t.le(coins * q, p))
        rest = _remaining(wanted, shares, accepted)
        further = t.argmax(t.log(rest) + gumbel(t.slice_axis(random, 1, 0, vocabulary)), 1, keepdims=True)
        updates = {"draws": draws + 1}
    tokens = t.concat([t.state("token", (batch, 1), "int64"), proposals], 1)
    updates |= {
        "token": further, "previous": t.gather_elements(tokens, accepted, 1),
        "length": t.state("length", (batch,), "int64") + t.squeeze(accepted, 1) + 1,
    }  # fmt: skip
    result = t.concat([proposals, further, accepted], 1)
    return Graph.of({"round": result}, updates=updates, name=f"accept-{kind}-{count}")


def _first(passed: Tensor) -> Tensor:
    """Number of leading true values of each row of [batch, count], [batch, 1] int64."""
    failures = t.cumsum(t.cast(t.logical_not(passed), "int64"), 1)
    return t.sum(t.cast(t.eq(failures, 0), "int64"), 1, keepdims=True)


def _remaining(wanted: Tensor, shares: Tensor, accepted: Tensor) -> Tensor:
    """Unnormalized probabilities [batch, vocabulary] of the token after the accepted ones: max(p - q, 0), or p after
    all proposals.
    """
    batch, _, vocabulary = wanted.shape
    place = t.broadcast_to(t.expand_dims(accepted, 2), (batch, 1, vocabulary))
    none = t.zeros((batch, 1, vocabulary))
    p, q = (t.squeeze(t.gather_elements(x, place, 1), 1) for x in (wanted, t.concat([shares, none], 1)))
    rest = t.maximum(p - q, 0.0)
    return t.where(t.gt(t.sum(rest, 1, keepdims=True), 0.0), rest, p)  # p: both are equal but for rounding
