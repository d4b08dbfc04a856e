"""Functions that build the graph of ATen reductions, scans, sorts and contractions. They take the arguments of the ATen
schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr
from ...errors import UnsupportedError
from ..common.sampling import running, whole_sizes
from .aten_create import neutral
from .aten_pointwise import as_float, lift, number

Axes = int | Sequence[int] | None


def _axes(x: Tensor, dim: Axes) -> Axes:
    """Normalize reduction axes.

    None (all axes) for an empty list and for a 0-d tensor, which PyTorch lets have an axis 0.
    """
    return None if not x.rank or (dim is not None and not isinstance(dim, int) and not list(dim)) else dim


def _total(x: Tensor, dtype: str | None) -> Tensor:
    """Cast x to the dtype of its sum: int64 for integers and bools."""
    return t.cast(x, dtype or (x.dtype if dtypes.is_float(x.dtype) else "int64"))


def sum_(x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    """Sum over the axes `dim` (None: all), in `dtype` or PyTorch's default; with `keepdim` they stay, with size 1."""
    x = _total(x, dtype)
    return t.sum(x, _axes(x, dim), keepdim, x.dtype)


def sum_all(x: Tensor, dtype: str | None = None) -> Tensor:
    """Sum of all elements."""
    return sum_(x, None, False, dtype)


def mean(x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    """Mean over the axes `dim` (None: all); with `keepdim` they stay, with size 1."""
    return t.mean(t.cast(x, dtype or x.dtype), _axes(x, dim), keepdim)


def mean_all(x: Tensor, dtype: str | None = None) -> Tensor:
    """Mean of all elements."""
    return mean(x, None, False, dtype)


def prod(x: Tensor, dim: int, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    """Product over the axis `dim`; with `keepdim` it stays, with size 1."""
    x = _total(x, dtype)
    return t.prod(x, _axes(x, dim), keepdim, x.dtype)


def prod_all(x: Tensor, dtype: str | None = None) -> Tensor:
    """Product of all elements."""
    x = _total(x, dtype)
    return t.prod(x, dtype=x.dtype)


def over_axes(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the reduction with ATen's arguments (x, dim, keepdim) that `build` makes of (x, axes, keepdims). `dim`:
    one axis or several; None or an empty list means all axes."""
    return lambda x, dim=None, keepdim=False: build(x, _axes(x, dim), keepdim)


def truth(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the reduction (x, dim, keepdim) any or all made of `build`; an empty list of axes reduces none."""
    reduced = over_axes(build)
    none: Callable[[Any], bool] = lambda dim: isinstance(dim, list | tuple) and not dim
    return lambda x, dim=None, keepdim=False: t.cast(x, "bool") if none(dim) else reduced(x, dim, keepdim)


def arg(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an arg-reduction (x, dim, keepdim) made of `build`; without an axis it runs over the flattened tensor."""

    def run(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            found = build(t.reshape(x, (-1,)), 0)
            return t.reshape(found, (1,) * x.rank) if keepdim else found
        return build(x, dim, keepdim) if x.rank else t.full((), 0, "int64")

    return run


def extreme(value: Callable[..., Tensor], position: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Return a function (x, dim, keepdim) that builds [largest or smallest element along an axis, its index], from one
    function for the element (`value`) and one for its index (`position`)."""
    find = arg(position)
    return lambda x, dim, keepdim=False: [value(x, _axes(x, dim), keepdim), find(x, dim, keepdim)]


def var(x: Tensor, dim: Axes = None, correction: float | bool | None = None, keepdim: bool = False) -> Tensor:
    """Variance over the axes `dim` (None: all), divided by n - correction (default 1)."""
    return t.var(x, _axes(x, dim), keepdim, 1 if correction is None else float(correction))


def var_dim(x: Tensor, dim: Axes = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    """Variance over the axes `dim` (None: all), divided by n - 1 if `unbiased`, else by n."""
    return var(x, dim, float(unbiased), keepdim)


def var_all(x: Tensor, unbiased: bool = True) -> Tensor:
    """Variance of all elements, divided by n - 1 if `unbiased`, else by n."""
    return var(x, None, float(unbiased))


def root(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that builds the standard deviation, from `build`, which builds the variance."""
    return lambda *args, **named: t.sqrt(build(*args, **named))


def with_mean(build: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Return a function that builds [result of `build` (variance or standard deviation), mean] over axes."""

    def run(x: Tensor, dim: Axes = None, correction: Any = None, keepdim: bool = False) -> list[Tensor]:
        return [build(x, dim, correction, keepdim), mean(x, dim, keepdim)]

    return run


def logsumexp(x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over the axes `dim`."""
    x = as_float(x)
    axes = tuple(sorted({d % max(x.rank, 1) for d in ([dim] if isinstance(dim, int) else dim or range(x.rank))}))
    if not x.rank:
        return x
    out = c.logsumexp(x, axes=axes)
    return out if keepdim else t.reshape(out, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def vector_norm(
    x: Tensor, order: float = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    """Vector norm of the given order over the axes `dim` (None: all), in `dtype` or that of x."""
    x = t.cast(x, dtype or x.dtype)
    axes = _axes(x, dim)
    if order == 2:
        return t.sqrt(t.sum(x * x, axes, keepdim))
    if order in (float("inf"), float("-inf")):
        return (t.max if order > 0 else t.min)(t.abs(x), axes, keepdim)
    if order == 0:
        return t.sum(t.cast(t.ne(x, 0), x.dtype), axes, keepdim)
    if order == 1:
        return t.sum(t.abs(x), axes, keepdim)
    return t.pow(t.sum(t.pow(t.abs(x), float(order)), axes, keepdim), 1.0 / float(order))


def norm(x: Tensor, p: float | None = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    """p-norm over the axes `dim` (None: all), for older overloads."""
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype)


def cumsum(x: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Cumulative sum along the axis `dim`."""
    x = _total(x, dtype)
    return t.cumsum(x, dim, x.dtype) if x.rank else x


def cumprod(x: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Cumulative product along the axis `dim`."""
    x = _total(x, dtype)
    return running(x, dim, t.mul, 1) if x.rank else x


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Logarithm of the cumulative sum of exp(x) along the axis `dim`."""

    def both(a: Tensor, b: Tensor) -> Tensor:
        top = t.maximum(a, b)
        safe = t.where(t.is_inf(top), 0.0, top)
        return t.log(t.exp(a - safe) + t.exp(b - safe)) + safe

    return running(as_float(x), dim, both, float("-inf")) if x.rank else x


def running_extreme(build: Callable[[Any, Any], Tensor]) -> Callable[..., list[Tensor]]:
    """Return a function (x, dim) that builds [running maxima or minima along an axis, their indices]; of equal elements
    the last index. `build`: maximum or minimum of two tensors."""

    def run(x: Tensor, dim: int) -> list[Tensor]:
        if not x.rank:
            return [x, t.full((), 0, "int64")]
        best = running(x, dim, build, neutral(build is t.maximum, x.dtype))
        new = t.logical_or(t.eq(x, best), t.ne(x, x)) if dtypes.is_float(x.dtype) else t.eq(x, best)
        places = t.where(new, t.iota(x.shape, dim % x.rank), 0)
        return [best, running(places, dim, t.maximum, 0)]

    return run


def _softmax(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
        x = t.cast(x, dtype) if isinstance(dtype, str) else as_float(x)
        if not x.rank:
            return t.reshape(build(t.reshape(x, (1,)), axis=0), ())
        return build(x, axis=dim % x.rank)

    return run


softmax, log_softmax = _softmax(c.softmax), _softmax(c.log_softmax)


# ---------------------------------------------------------------- sorting and selection
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> list[Tensor]:
    """Return [x sorted along the axis `dim`, the indices of the sorted values]; stable."""
    if not x.rank:
        return [x, t.full((), 0, "int64")]
    order = t.argsort(x, dim, descending)
    return [t.gather_elements(x, order, dim), order]


def sort_stable(x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False) -> list[Tensor]:
    """Return [sorted values, their indices]; always stable."""
    return sort(x, dim, descending)


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return the indices that sort x along the axis `dim`."""
    return sort(x, dim, descending)[1]


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return [median, its index] along an axis; without an axis the median of all elements.

    Of an even count the lower middle element is used. NaN if any element is NaN.
    """
    if dim is None:
        return median(t.reshape(x, (-1,)), 0)[0]
    if not x.rank:
        return [x, t.full((), 0, "int64")]
    (size,) = whole_sizes((x.shape[dim],), "a median")
    if not size:  # PyTorch defines the median of no elements only for the overload without an axis
        return [
            t.full(t.sum(x, dim, keepdim).shape, float("nan"), x.dtype),
            t.zeros(t.sum(x, dim, keepdim).shape, "int64"),
        ]
    values, places = (t.slice_axis(v, dim, (size - 1) // 2, (size + 1) // 2) for v in sort(x, dim))
    if dtypes.is_float(x.dtype):
        odd = t.ne(x, x)
        values = t.where(t.any(odd, dim, True), float("nan"), values)
        places = t.where(t.any(odd, dim, True), t.argmax(t.cast(odd, "int64"), dim, True), places)
    return [v if keepdim else t.squeeze(v, dim) for v in (values, places)]


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> list[Tensor]:
    """Return [k-th smallest element along the axis `dim` (k from 1), its index]."""
    if not x.rank:
        return [x, t.full((), 0, "int64")]
    found = (t.slice_axis(v, dim, k - 1, k) for v in sort(x, dim))
    return [v if keepdim else t.squeeze(v, dim) for v in found]


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Tensor]:
    """Return [the k largest (or smallest) elements along the axis `dim`, their indices]; of equal elements the first
    come first."""
    if not x.rank:
        return [x, t.full((), 0, "int64")]
    order = t.slice_axis(t.argsort(x, dim, largest), dim, 0, k)
    return [t.gather_elements(x, order, dim), order]


# ---------------------------------------------------------------- contractions
def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Return x @ w.T + b with w[N, K]."""
    if w.rank == 1:
        return matvec(x, w) if b is None else matvec(x, w) + b
    wt = t.transpose(w)
    if b is None:
        return t.matmul(x, wt)
    if x.rank == 1:
        return t.reshape(c.linear(t.reshape(x, (1, *x.shape)), wt, b), w.shape[:1])
    return c.linear(x, wt, b)


def matvec(x: Tensor, y: Tensor) -> Tensor:
    """Return x[..., K] @ y[K]."""
    if x.rank == 1:
        return dot(x, y)
    return t.matmul(x, y)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product of two vectors."""
    return t.reshape(t.matmul(t.reshape(x, (1, *x.shape)), t.reshape(y, (*y.shape, 1))), ())


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product with NumPy's rank rules."""
    return dot(x, y) if x.rank == y.rank == 1 else t.matmul(x, y)


def addmm(base: Tensor, x: Tensor, y: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Return beta * base + alpha * (x @ y), for matrices and batches of matrices."""
    plain = beta == 1 and alpha == 1
    if plain and y.rank == 2 and base.rank == 1 and base.shape == y.shape[1:]:
        return c.linear(x, y, base)
    return _weighed(base, t.matmul(x, y), beta, alpha)


def _weighed(base: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """Return beta * base + alpha * product. For integers the factors are truncated, as in PyTorch."""
    if not dtypes.is_float(product.dtype):
        beta, alpha = (int(v) if isinstance(v, float) else v for v in (beta, alpha))
    product = product if alpha == 1 else product * number(alpha)
    return product if beta == 0 else t.add(*lift(product, base if beta == 1 else base * number(beta)))


def addbmm(base: Tensor, x: Tensor, y: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Return beta * base + alpha * (sum of a batch of products)."""
    return _weighed(base, t.sum(t.matmul(x, y), 0, dtype=x.dtype), beta, alpha)


def dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """p-norm of the difference of x and y."""
    return vector_norm(t.sub(*lift(x, y)), p)


def cdist(x: Tensor, y: Tensor, p: float = 2, mode: int | None = None) -> Tensor:
    """p-norms of the differences of each row of x and each row of y. `mode`, a choice of algorithm, is ignored."""
    return vector_norm(t.sub(*lift(t.expand_dims(x, -2), t.expand_dims(y, -3))), p, -1)


def outer(x: Tensor, y: Tensor) -> Tensor:
    """Outer product of two vectors."""
    a, b = lift(x, y)
    return t.expand_dims(a, 1) * t.expand_dims(b, 0)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100
) -> list[Tensor]:
    """Return [negative log-likelihood of class indices, total weight]; `reduction` is 0 none, 1 mean, 2 sum. Elements
    of the class `ignore_index` do not count."""
    if x.rank == 1:
        losses, total = nll_loss(
            t.expand_dims(x, 0), t.reshape(target, (1,)), weight, reduction, ignore_index
        )  # fmt: skip
        return [t.reshape(losses, target.shape if reduction == 0 else ()), total]
    kept = t.ne(target, ignore_index)
    safe = t.where(kept, target, 0)
    weights = t.cast(kept, x.dtype)
    if weight is not None:
        weights = weights * t.gather(weight, safe, 0)
    picked = t.squeeze(t.gather_elements(x, t.expand_dims(safe, 1), 1), 1)
    losses = t.where(kept, -picked * weights, 0.0)
    total = t.sum(weights)
    if reduction == 0:
        return [losses, t.full((), 0.0, x.dtype)]
    return [t.sum(losses) if reduction == 2 else t.div(t.sum(losses), total), total]


def refuse_free(value: Any, what: str) -> int:
    """Return a size as an int. Raises UnsupportedError, which names `what`, for a free size."""
    if isinstance(value, DimExpr):
        raise UnsupportedError(f"{what} depends on the free dimension {value}", hint="bind it: dims={...}")
    return int(value)
