"""Helper functions of emitted GPU programs, for ops that are not a single Torch call.

Their source is copied into emitted programs: each may use `torch`, the other helpers here and those of torch_helpers.py
only. No helper synchronizes with the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir.definitions import sources_of
from .torch_helpers import four_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def int_matmul(x: Any, w: Any) -> Any:
    """Integer matrix product: exact in float64 for 8-bit integers, else multiply and add with wrap-around."""
    if x.element_size() == w.element_size() == 1:
        return torch.matmul(x.double(), w.double())
    return (x.unsqueeze(-1) * w.unsqueeze(-3)).sum(-2)


def int_divided(x: Any, y: Any, rest: bool) -> Any:
    """Integer floor division, or the remainder with `rest`; 0 where y is 0."""
    safe = torch.where(y == 0, 1, y)
    made = torch.remainder(x, safe) if rest else torch.floor_divide(x, safe)
    return torch.where(y == 0, 0, made)


def in_tf32(function: Any, *operands: Any, **more: Any) -> Any:
    """Result of `function(*operands, **more)`, a library GEMM, with TF32 enabled whatever the global setting."""
    settings = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(settings, "fp32_precision") else ("allow_tf32", True)
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        return function(*operands, **more)
    finally:
        setattr(settings, name, before)


def evened(w: Any) -> Any:
    """A column-major copy of a matrix, padded with zeros to multiples of 16 bytes in both axes."""
    step = 16 // w.element_size()
    rows, columns = w.shape
    return torch.nn.functional.pad(w.t(), (0, -rows % step, 0, -columns % step)).contiguous().t()


def even_product(x: Any, w: Any, out: Any, room: Any, b: Any = None) -> None:
    """x @ w, plus b, into out, where w is padded (`evened`); a result of another width than out goes through the
    scratch memory `room`. Libraries have fast kernels only for rows aligned to 16 bytes."""
    made = out if out.shape[1] == w.shape[1] else room_of(room, out, w.shape[1])
    if x.shape[1] < w.shape[0]:
        padded = room_of(room[made.nbytes if made is not out else 0 :], x, w.shape[0])
        padded[:, : x.shape[1]] = x
        padded[:, x.shape[1] :] = 0
        x = padded
    torch.mm(x, w, out=made)
    if b is not None:
        torch.add(made[:, : out.shape[1]], b, out=out)
    elif made is not out:
        out.copy_(made[:, : out.shape[1]])


def room_of(room: Any, like: Any, columns: int) -> Any:
    """A matrix view at the start of the scratch memory `room`, with the rows and the dtype of the tensor `like`."""
    return room[: like.shape[0] * columns * like.element_size()].view(like.dtype).view(-1, columns)


def product(x: Any, axes: Sequence[int]) -> Any:
    """Product over axes, with kept dimensions."""
    for axis in axes:
        x = torch.prod(x, axis, True, dtype=x.dtype)
    return x


def split_group_norm(x: Any, groups: int, g: Any, b: Any, eps: float, out: Any) -> None:
    """Group norm of x[n, channels, ...] into out, with statistics by a reduction that Torch splits over many blocks:
    its own kernel has one block for each group of an example. Computed in float32."""
    n, channels = x.shape[:2]
    var, mean = torch.var_mean(x.view(n * groups, -1).float(), 1, correction=0)
    scale = torch.rsqrt(var + eps).view(n, groups, 1) * g.float().view(groups, -1)
    shift = torch.addcmul(b.float().view(groups, -1), mean.view(n, groups, 1), scale, value=-1)
    form = (n, channels, *(1,) * (x.dim() - 2))
    torch.addcmul(shift.view(form), x, scale.view(form), out=out)


def sorting(x: Any, axis: int, descending: bool) -> Any:
    """Indices that sort along an axis; stable."""
    x = x.to(torch.uint8) if x.dtype == torch.bool else x
    return torch.sort(x, dim=axis, descending=descending, stable=True)[1]


def padded_into(x: Any, axis: int, lo: int, value: float, out: Any) -> None:
    """x padded with a constant on both sides of an axis, into out."""
    out.fill_(value)
    out.narrow(axis, lo, x.shape[axis]).copy_(x)


def taken(x: Any, index: Any, axis: int, out: Any) -> None:
    """Slices of x at the indices along `axis`, into out; indices are clipped, and the axes of `index` replace
    `axis`."""
    line = index.reshape(-1).long().clamp(0, x.shape[axis] - 1)
    flat = out.view(*x.shape[:axis], line.shape[0], *x.shape[axis + 1 :])
    if flat.dtype == x.dtype:
        torch.index_select(x, axis, line, out=flat)
    else:
        flat.copy_(torch.index_select(x, axis, line))


def picked(x: Any, index: Any, axis: int, out: Any) -> None:
    """Elements of x at `index` along an axis (take_along_axis), into out; negative indices count from the end, others
    are clipped."""
    size, index = x.shape[axis], index.long()
    out.copy_(torch.gather(x, axis, (index + size * (index < 0)).clamp_(0, size - 1)))


def scattered(x: Any, index: Any, updates: Any, axis: int, mode: str, out: Any) -> None:
    """Write x with updates written at the index along one axis into `out`. x may be out. `mode`: "set", or how an
    update is combined with the element there: "add", "mul", "max", "min"."""
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    index, updates = index.long().remainder(x.shape[axis]), updates.to(out.dtype)
    if mode == "set":
        out.scatter_(axis, index, updates)
    else:
        reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[mode]
        out.scatter_reduce_(axis, index, updates, reduce)


def replaced(x: Any, index: Any, updates: Any, axis: int, out: Any) -> None:
    """Write x with whole slices overwritten at the indices along one axis into `out`. x may be out."""
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    out.index_copy_(axis, index.reshape(-1).long().remainder(x.shape[axis]), updates.to(out.dtype))


def pooled(x: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, value: float) -> Any:
    """Sliding windows of padded x, with the window elements in new last axes."""
    n = len(kernel)
    x = torch.constant_pad_nd(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])], value).contiguous()
    span = [dilations[i] * (kernel[i] - 1) + 1 for i in range(n)]
    counts = [(x.shape[2 + i] - span[i]) // strides[i] + 1 for i in range(n)]
    steps = [x.stride(2 + i) for i in range(n)]
    shape = (*x.shape[:2], *counts, *kernel)
    places = (*x.stride()[:2], *(s * k for s, k in zip(steps, strides)), *(s * d for s, d in zip(steps, dilations)))
    return x.as_strided(shape, places)


def padded_conv(x: Any, w: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    """Convolution with asymmetric padding."""
    n = len(pads) // 2
    wide = torch.constant_pad_nd(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])
    zeros = [0] * n
    return torch._convolution(wide, w, None, strides, zeros, dilations, False, zeros, groups, False, False, True, False)


def channels_innermost(w: Any, dtype: Any) -> Any:
    """w[N, C, H, W] in channels-last layout, with channels-last strides even for axes of size 1."""
    return torch.empty_like(w, dtype=dtype, memory_format=torch.channels_last).copy_(w)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    """x * cos + rotate_half(x) * sin over the last axis."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def attended(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, kernel: str, rows: bool) -> Any:
    """Attention of [batch, heads, T, D] by one of Torch's fused kernels ("" for its own choice); rank 3 has one batch,
    rank 5 a group axis that k and v share. With `rows`, the heads of a position are contiguous in the result (layout
    [batch, T, heads, D]), as output projections read them."""
    shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, mask = four_axes(q, k, v, mask)
    gqa = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    if kernel:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, kernel)):
            made = attend(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)
    else:
        made = attend(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)
    if rows:
        return made.transpose(1, 2).contiguous().transpose(1, 2).view(shape)
    return made.contiguous().view(shape)


def grouped(q: Any, k: Any, v: Any, mask: Any, scale: float, kernel: str) -> Any:
    """Attention without a causal mask of q[batch, kv heads, group, T, D], where a group shares k and v: the group's
    queries are rows of one matrix, so that k and v are read once."""
    batch, heads, group, rows, width = q.shape
    q = q.reshape(batch, heads, group * rows, width)
    mask = mask.squeeze(2) if mask is not None and mask.dim() == 5 else mask
    made = attended(q, k.squeeze(2), v.squeeze(2), mask, scale, False, kernel, False)
    return made.view(batch, heads, group, rows, v.shape[-1])


def unpacked(x: Any, bits: int, form: str, axis: int, block: int) -> Any:
    """Numbers of 2 or 4 bits in bytes x along an axis, in units of `block` bytes (`quantized_ops.unpack`), as int32 or
    float32."""
    count, size, rest = 8 // bits, x.shape[axis], (1,) * (x.dim() - axis - 1)
    shifts = torch.arange(0, 8, bits, device=x.device, dtype=torch.int32).view(count, 1, *rest)
    units = x.reshape(*x.shape[:axis], size // block, 1, block, *x.shape[axis + 1 :]).to(torch.int32)
    codes = ((units >> shifts) & ((1 << bits) - 1)).reshape(*x.shape[:axis], size * count, *x.shape[axis + 1 :])
    if form == "signed":
        return (codes ^ (1 << bits - 1)) - (1 << bits - 1)
    if form == "e2m1":
        exponent, mantissa = codes >> 1 & 3, codes & 1
        twice = torch.where(exponent == 0, mantissa, mantissa + 2 << (exponent - 1).clamp(0))
        return torch.where(codes < 8, 0.5, -0.5) * twice
    return codes


def dequantized(q: Any, s: Any, z: Any) -> Any:
    """(q - z) * s in the dtype of s, each value of s and z repeated over its block of q."""
    units = [n for size, blocks in zip(q.shape, s.shape) for n in (blocks, size // max(blocks, 1))]
    spread = [n for blocks in s.shape for n in (blocks, 1)]
    zeros = z.reshape(spread if z.shape == s.shape else (1,) * len(spread)).to(s.dtype)
    return ((q.to(s.dtype).reshape(units) - zeros) * s.reshape(spread)).reshape(q.shape)


def quantized(x: Any, s: Any, z: Any) -> Any:
    """x / s rounded to whole numbers, ties to even, plus z, clipped to the range of z's dtype."""
    limits = torch.iinfo(z.dtype)
    return (torch.round(x / s) + z.to(x.dtype)).clamp(limits.min, limits.max)


#: helper name -> source
HELPERS: dict[str, str] = dict(sources_of(__name__))
