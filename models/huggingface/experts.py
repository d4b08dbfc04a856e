"""Builds layers of routed experts: every token passes through the few gated MLPs that a router chooses for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...errors import BadModelError
from .checkpoint import Config, Weights
from .families import Experts, Sizes
from .layers import wide

Matrix = tuple[Tensor, Tensor | None]  # a matrix per expert, and a bias or None
MAX_EXPERTS = 4096  # largest number of experts in a layer


@dataclass(frozen=True)
class _Stacked:
    """Matrices of all experts: gate and up [experts, hidden, inner], down [experts, inner, hidden], each with a bias
    [experts, 1, width] or None."""

    gate: Matrix
    up: Matrix
    down: Matrix

    def chosen(self, index: Tensor) -> _Stacked:
        """The matrices of the experts at these indices; the axes of `index` replace the first axis."""

        def pick(pair: Matrix) -> Matrix:
            return t.gather(pair[0], index, 0), None if pair[1] is None else t.gather(pair[1], index, 0)

        return _Stacked(pick(self.gate), pick(self.up), pick(self.down))


def routed(
    config: Config, w: Weights, at: str, x: Tensor, s: Sizes, experts: Experts, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """Weighted sum of the chosen experts' outputs for x [B, T, hidden].

    Few tokens read the matrices of their own experts only; otherwise all experts run on all tokens and the outputs of
    those that were not chosen count zero. `at`: prefix of the tensors' names. `activation`: of the gate. Raises
    BadModelError if more experts are chosen than there are.
    """
    count, chosen = (
        config.size(_count_field(config, experts), most=MAX_EXPERTS),
        config.size("num_experts_per_tok", most=MAX_EXPERTS),
    )
    if chosen > count:
        raise BadModelError(f"num_experts_per_tok={chosen} of {count} experts", where=config.where)
    config.refuse(router_jitter_noise=0.0)
    at = f"{at}.{experts.at}"
    flat = t.reshape(x, (x.shape[0] * x.shape[1], s.hidden))
    scores, order = _route(config, w, f"{at}.{experts.router}", flat, count, chosen, experts)
    matrices = _matrices(config, w, at, x.dtype, s, experts, count)
    act = _clamped(config) if not experts.parts else _gate_with(activation)
    tokens = flat.shape[0]
    if isinstance(tokens, int) and tokens * chosen <= count:
        rows = t.reshape(flat, (tokens, 1, 1, s.hidden))
        out = _mlp(rows, matrices.chosen(order), act)  # [tokens, chosen, 1, hidden]
        weights = t.reshape(scores, (tokens, chosen, 1, 1))
        mixed = t.sum(t.cast(out, wide(x.dtype)) * weights, (1, 2))
    else:
        out = _mlp(t.expand_dims(flat, 0), matrices, act)  # [experts, tokens, hidden]
        here = t.eq(t.expand_dims(order, -1), t.iota((1, 1, count), 2))
        none = t.zeros((1, 1, 1), scores.dtype)
        weights = t.sum(t.where(here, t.expand_dims(scores, -1), none), 1)  # [tokens, experts]
        mixed = t.sum(t.cast(out, wide(x.dtype)) * t.expand_dims(t.transpose(weights), -1), 0)
    return t.reshape(t.cast(mixed, x.dtype), x.shape)


def _count_field(config: Config, experts: Experts) -> str:
    """The config field of the number of experts: the family's own, or the name that newer configs have for it."""
    return experts.count if experts.count in config.fields else "num_local_experts"


def _route(
    config: Config, w: Weights, name: str, x: Tensor, count: int, chosen: int, experts: Experts
) -> tuple[Tensor, Tensor]:
    """Return (scores, numbers) of the chosen experts, each [tokens, chosen]; of equal scores the first expert wins."""
    weight = t.transpose(w.take(f"{name}.weight", (count, x.shape[-1]), x.dtype))
    if experts.scores == "chosen":
        logits = t.cast(c.linear(x, weight, w.take(f"{name}.bias", (count,), x.dtype)), wide(x.dtype))
        order = t.slice_axis(t.argsort(logits, -1, descending=True), -1, 0, chosen)
        return c.softmax(t.gather_elements(logits, order, 1), axis=1), order
    shares = c.softmax(t.cast(t.matmul(x, weight), wide(x.dtype)), axis=1)
    order = t.slice_axis(t.argsort(shares, -1, descending=True), -1, 0, chosen)
    scores = t.gather_elements(shares, order, 1)
    if experts.scores == "all" or config.flag("norm_topk_prob", False):
        scores = scores / t.sum(scores, 1, keepdims=True)
    return scores, order


def _matrices(config: Config, w: Weights, at: str, dtype: str, s: Sizes, experts: Experts, count: int) -> _Stacked:
    inner = config.size(experts.inner)
    if experts.parts:

        def stacked(part: str, shape: tuple[int, int]) -> Matrix:
            names = [f"{at}.experts.{e}.{part}.weight" for e in range(count)]
            return t.transpose(w.stack(f"{at}.{part}", names, shape, dtype)), None

        gate, up, down = experts.parts
        inward, outward = (inner, s.hidden), (s.hidden, inner)
        return _Stacked(stacked(gate, inward), stacked(up, inward), stacked(down, outward))
    at = f"{at}.experts"
    both = t.reshape(w.take(f"{at}.gate_up_proj", (count, s.hidden, 2 * inner), dtype), (count, s.hidden, inner, 2))
    bias = t.reshape(w.take(f"{at}.gate_up_proj_bias", (count, 2 * inner), dtype), (count, 1, inner, 2))
    below = t.expand_dims(w.take(f"{at}.down_proj_bias", (count, s.hidden), dtype), 1)
    down_proj = w.take(f"{at}.down_proj", (count, inner, s.hidden), dtype)
    return _Stacked((_last(both, 0), _last(bias, 0)), (_last(both, 1), _last(bias, 1)), (down_proj, below))


def _last(x: Tensor, place: int) -> Tensor:
    return t.squeeze(t.slice_axis(x, -1, place, place + 1), -1)


def _mlp(x: Tensor, m: _Stacked, act: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    def part(y: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        out = t.matmul(y, matrix)
        return out if bias is None else out + bias

    return part(act(part(x, *m.gate), part(x, *m.up)), *m.down)


def _gate_with(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda gate, up: activation(gate) * up


def _clamped(config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """The clamped SwiGLU: (up + 1) * gate * sigmoid(alpha * gate), gate limited above, up on both sides."""
    alpha, limit = config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0)

    def act(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = t.minimum(gate, limit), c.clip(up, lo=-limit, hi=limit)
        return (up + 1.0) * (gate * c.sigmoid(gate * alpha))

    return act
