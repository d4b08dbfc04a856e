"""Holds type laws (rules for a result's shape and dtype, given the operands') of the ops of training steps: gradients
of convolutions, norms, attention and pooling, and the statistics that they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ...errors import ShapeError
from ..types.dims import Shape
from .law_text import D0, DTYPE_ID, S0, Cases, LawCase, check_index_dtype, has_rank, same_dtype, vec_get, vec_of
from .laws_composite import attention
from .laws_contraction import conv, pool, pool_text
from .ops import Attrs, Op, Type

Operand = TypeVar("Operand")


def _check(name: str, found: Shape, wanted: Shape) -> None:
    """Raise ShapeError unless an operand's shape is the one wanted."""
    if found != wanted:
        raise ShapeError(f"{name} is {found}, not {wanted}")


def conv_input_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of the gradient g[N, O, *T] of a convolution's result with weight w[O, C / groups, *K]: the attribute
    `shape`, that of the convolution's input.

    Raises ShapeError unless that convolution has g's shape.
    """
    made = Type(attrs["shape"], same_dtype(types))
    _check("the gradient", types[0].shape, conv(op, (made, types[1]), attrs).shape)
    return made


def conv_weight_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of a convolution's input x[N, C, *S] with the gradient g[N, O, *T] of its result: the attribute
    `shape`, that of the weight.

    Raises ShapeError unless the convolution has g's shape.
    """
    made = Type(attrs["shape"], same_dtype(types))
    _check("the gradient", types[1].shape, conv(op, (types[0], made), attrs).shape)
    return made


def norm_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of x[..., C]; g has it, too, the gain is [C], mean and reciprocal deviation are [..., 1].

    Raises ShapeError otherwise.
    """
    x, g, gain, *statistics = (t.shape for t in types)
    _check("the gradient", g, x)
    _check("the gain", gain, x[-1:])
    for s in statistics:
        _check("a statistic", s, (*x[:-1], 1))
    return Type(x, same_dtype(types))


def channel_norm_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of x[N, C, ...]; g has it, too, the gain is [C], statistics are [C], with the attribute
    `groups` [N, groups].

    Raises ShapeError otherwise.
    """
    x, g, gain, *statistics = (t.shape for t in types)
    groups = attrs.get("groups")
    _check_groups(x, 1 if groups is None else groups)
    _check("the gradient", g, x)
    _check("the gain", gain, x[1:2])
    for s in statistics:
        _check("a statistic", s, x[1:2] if groups is None else (x[0], groups))
    return Type(x, same_dtype(types))


def channel_statistic(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of a statistic of each channel of x[N, C, ...]: [C]. Raises ShapeError for a vector or a scalar."""
    (x,) = types
    if x.rank < 2:
        raise ShapeError(f"{x} has no channels")
    return Type(x.shape[1:2], x.dtype)


def channel_statistic_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `channel_statistic` as egglog text: one case. `ranks` is not used."""
    yield LawCase(vec_of([vec_get(S0, 1)]), D0)


def _check_groups(x: Shape, groups: int) -> None:
    """Raise ShapeError unless x has channels that are divided evenly into groups."""
    if len(x) < 2 or groups < 1 or (isinstance(x[1], int) and x[1] % groups):
        raise ShapeError(f"the channels of {x} are not divided into {groups} groups")


def group_statistic(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of a statistic of each of `groups` groups of channels of x[N, C, ...]: [N, groups].

    Raises ShapeError if they do not divide the channels.
    """
    _check_groups(types[0].shape, attrs["groups"])
    return Type((types[0].shape[0], attrs["groups"]), types[0].dtype)


def group_statistic_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `group_statistic` as egglog text: one case. `ranks` is not used."""
    yield LawCase(vec_of([vec_get(S0, 0), "a_groups"]), D0)


def group_gain_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[N, C, ...] with a gradient of its shape and two statistics [N, groups]: [C].

    Raises ShapeError if the operands do not fit.
    """
    x, g, *statistics = (t.shape for t in types)
    _check_groups(x, attrs["groups"])
    _check("the gradient", g, x)
    for s in statistics:
        _check("a statistic", s, (x[0], attrs["groups"]))
    return Type(x[1:2], same_dtype(types))


def attention_statistics(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of q[..., T, D] and k[..., S, D] (mask[..., T, S]) of equal rank: [..., T, 1].

    Raises ShapeError if the operands do not fit.
    """
    q, k, *mask = types
    made = attention(op, (q, k, k, *mask), attrs)
    return Type((*made.shape[:-1], 1), made.dtype)


def attention_statistics_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `attention_statistics` (row maxima and sums of softmax, kept for the backward pass) as egglog
    text: a case (shape, dtype, conditions) for each operand rank in `ranks` that is at least 3."""
    for r in ranks:
        if r >= 3:
            batch = [f"(max {vec_get(S0, i)} {vec_get('(shape x1)', i)})" for i in range(r - 2)]
            yield LawCase(vec_of([*batch, vec_get(S0, r - 2), "1"]), D0, (has_rank(S0, r),))


def attention_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of the first operand, one of q[..., T, D], k[..., S, D] and v[..., S, E]; the attribute `of`
    says which one. The further operands are the two others, the attention's result and its gradient [..., T, E], the
    statistics [..., T, 1], and a mask, if any. Leading sizes are equal.

    Raises ShapeError otherwise.
    """
    q, k, v, out, g, statistics, *mask = operands_of_gradient(types, attrs["of"])
    made = attention(op, (q, k, v, *mask), attrs)
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ShapeError("leading sizes of query, key and value differ")
    for t in (out, g):
        _check("the result or its gradient", t.shape, made.shape)
    _check("a statistic", statistics.shape, (*made.shape[:-1], 1))
    return Type(types[0].shape, same_dtype(types))


#: Attribute `of` of a gradient of attention -> its first three operands, as positions in (query, key, value).
ATTENTION_ORDER = {"query": (0, 1, 2), "key": (1, 0, 2), "value": (2, 0, 1)}


def operands_of_gradient(operands: Sequence[Operand], of: str) -> list[Operand]:
    """Operands of a gradient of attention, with query, key and value first, in this order.

    Raises ShapeError if `of` is not one of these three.
    """
    if of not in ATTENTION_ORDER:
        raise ShapeError(f"attention has no gradient of {of!r}", hint=f"one of {[*ATTENTION_ORDER]}")
    return [*(operands[ATTENTION_ORDER[of].index(i)] for i in range(3)), *operands[3:]]


def pool_indices(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the pooled shape of x[N, C, *S], int64. Raises ShapeError if the attributes do not fit."""
    return Type(pool(op, types, attrs).shape, "int64")


def pool_indices_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `pool_indices` as egglog text: one case for each of `ranks` (operand ranks that may occur)
    from 3."""
    for case in pool_text(op, ranks):
        yield case._replace(dtype=str(DTYPE_ID["int64"]))


def max_pool_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of g[N, C, *T] with integer indices of g's shape: the attribute `shape`, [N, C, *S].

    Raises ShapeError if the operands do not fit.
    """
    g, indices = types
    check_index_dtype(indices)
    _check("the shape of the indices", indices.shape, g.shape)
    if g.rank < 3 or len(attrs["shape"]) != g.rank or attrs["shape"][:2] != g.shape[:2]:
        raise ShapeError(f"pooling does not take {attrs['shape']} to {g.shape}")
    return Type(attrs["shape"], g.dtype)


def embedding_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of g[..., D] with integer indices[...]: the attribute `shape`, [rows, D].

    Raises ShapeError if the operands do not fit.
    """
    g, indices = types
    check_index_dtype(indices)
    _check("the gradient", g.shape, (*indices.shape, *attrs["shape"][1:]))
    if len(attrs["shape"]) != 2:
        raise ShapeError(f"a table has two axes, not {attrs['shape']}")
    return Type(attrs["shape"], g.dtype)


def softmax_gradient(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of two operands of one type: that type. Raises ShapeError otherwise, or if the axis does not
    exist."""
    if not 0 <= attrs["axis"] < types[0].rank:
        raise ShapeError(f"axis {attrs['axis']} is outside a rank-{types[0].rank} value")
    _check("the second operand", types[1].shape, types[0].shape)
    return Type(types[0].shape, same_dtype(types))


__all__ = [
    "ATTENTION_ORDER",
    "attention_gradient",
    "attention_statistics",
    "attention_statistics_text",
    "channel_norm_gradient",
    "channel_statistic",
    "channel_statistic_text",
    "conv_input_gradient",
    "conv_weight_gradient",
    "embedding_gradient",
    "group_gain_gradient",
    "group_statistic",
    "group_statistic_text",
    "max_pool_gradient",
    "norm_gradient",
    "operands_of_gradient",
    "pool_indices",
    "pool_indices_text",
    "softmax_gradient",
]
