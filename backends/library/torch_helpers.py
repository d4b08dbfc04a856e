"""Helper functions of emitted programs that use Torch.

Their source is copied into emitted programs: each may use only `torch`, the other helpers here, and `scan` of
egraph/ops/recurrence.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...egraph.ops.recurrence import scan
from ..ir.definitions import source_of, sources_of

if TYPE_CHECKING:
    import torch


def mkl_pack(w: Any, rows: int) -> tuple[Any, Any]:
    """w[K, N] packed for MKL's GEMM with x[rows, K], and a placeholder of w's transposed shape without memory."""
    packed = torch.ops.mkl._mkl_reorder_linear_weight(w.t().contiguous(), rows)
    return packed, w.new_empty(1).expand(w.shape[1], w.shape[0])


def onednn_pack(w: Any, rows: int) -> Any:
    """w[K, N] in oneDNN's blocked layout for x[rows, K]."""
    return torch.ops.mkldnn._reorder_linear_weight(w.t().contiguous(), rows)


def layer_norm_out(x: Any, gain: Any, shift: Any, eps: float, out: Any) -> None:
    """Layer norm into out; mean and deviation go to small temporary tensors."""
    mean = x.new_empty((*x.shape[:-1], 1))
    torch.ops.aten.native_layer_norm.out(
        x, x.shape[-1:], gain, shift, eps, out0=out, out1=mean, out2=torch.empty_like(mean)
    )


def four_axes(q: Any, k: Any, v: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
    """(q, k, v, mask) of attention as [batch, heads, T, D]: rank 3 has one batch, rank 5 a group axis that k and v
    share."""
    if q.dim() == 3:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 3 else mask
    elif q.dim() == 5:
        q, k, v = q.flatten(1, 2), k.squeeze(2), v.squeeze(2)
        mask = mask.squeeze(2) if mask is not None and mask.dim() == 5 else mask
    return q, k, v, mask


def sdpa(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
    """Attention of [batch, heads, T, D]; rank 3 has one batch, rank 5 a group axis that k and v share."""
    attend = torch._C._nn.scaled_dot_product_attention
    shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, mask = four_axes(q, k, v, mask)
    made = attend(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return made.reshape(shape).contiguous()


def attention_spelled(
    q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, window: int, softcap: float
) -> Any:
    """Unfused softmax(scale * q @ k.T + mask) @ v, for options that the fused kernel lacks."""
    scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
    if softcap:
        scores.mul_(1 / softcap).tanh_().mul_(softcap)
    if causal or window:
        rows, columns = scores.shape[-2:]
        row, column = (torch.arange(n, device=q.device) for n in (rows, columns))
        ahead = column - row.unsqueeze(1) - (columns - rows)
        hidden = (ahead > 0) & bool(causal)
        if window:
            hidden = hidden | (ahead <= -window)
        scores.masked_fill_(hidden, float("-inf"))
    if mask is not None:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, -1), v)


def attention_hiding(q: Any, k: Any, v: Any, hidden: Any, scale: float, softcap: float) -> Any:
    """Unfused softmax(scale * q @ k.T) @ v with -inf for scores that are `hidden`, which fused kernels would add to
    them: they give NaN for rows with a hidden NaN or infinity."""
    scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
    if softcap:
        scores.mul_(1 / softcap).tanh_().mul_(softcap)
    return torch.matmul(torch.softmax(scores.masked_fill_(hidden, float("-inf")), -1), v)


def recurrent_weights(w: Any, cell: str, size: int, hidden: int, width: int, layers: int, directions: int) -> list[Any]:
    """Weights of recurrent layers, packed in one vector, as views in the order of Torch's recurrent functions. `size`:
    of the input; other attributes as of the op `recurrent` (`recurrent.layers`).
    """
    rows, found, taken = hidden * {"lstm": 4, "gru": 3, "plain": 1}[cell], [], 0
    for _ in range(layers):
        for _ in range(directions):
            shapes = [(rows, size), (rows, width), (rows,), (rows,), *([(width, hidden)] if width != hidden else [])]
            for shape in shapes:
                count = shape[0] * (shape[1] if len(shape) == 2 else 1)
                found.append(w[taken : taken + count].view(shape))
                taken += count
        size = directions * width
    return found


def recurrent_packed(
    w: Any, cell: str, activations: str, size: int, hidden: int, width: int, layers: int, directions: int
) -> list[Any]:
    """Weights of recurrent layers as views of one vector `w` (`recurrent_weights`); on a GPU copied to one contiguous
    buffer, as cuDNN requires.
    """
    found = recurrent_weights(w, cell, size, hidden, width, layers, directions)
    if w.is_cuda and torch.backends.cudnn.is_acceptable(w):
        found, mode = [v.clone() for v in found], {"lstm": 2, "gru": 3, "plain": int(activations == "tanh")}[cell]
        projected = width if width != hidden else 0
        each = 5 if projected else 4
        torch._cudnn_rnn_flatten_weight(found, each, size, mode, hidden, projected, layers, False, directions == 2)
    return found


def weight_gradient(x: Any, w: Any, strides: Any, pads: Any, dilations: Any, kernel: Any) -> Any:
    """Convolution of x[C, N, *S] and w[O, N, *G] as the gradient of a convolution's weight, from its image x and its
    result's gradient w, with batch and channels exchanged. Stride and dilation are exchanged as well. `kernel`: spatial
    sizes of the result. cuDNN must not round float32 operands to TF32.
    """
    like = x.new_empty(1).expand(w.shape[0], x.shape[0], *kernel)  # only its shape counts
    rule = getattr(torch.backends.cudnn, "conv", torch.backends.cudnn)
    name, strict = ("fp32_precision", "ieee") if hasattr(rule, "fp32_precision") else ("allow_tf32", False)
    before = getattr(rule, name)
    setattr(rule, name, strict)
    try:
        made = torch.ops.aten.convolution_backward(
            w.transpose(0, 1), x.transpose(0, 1), like, None, dilations, pads, strides, False, [0] * len(pads), 1,
            [False, True, False],
        )[1]  # fmt: skip
    finally:
        setattr(rule, name, before)
    return made.transpose(0, 1).contiguous()


def recurrent_layers(
    x: Any, state: Any, weights: Any, cell: str, activations: str, hidden: int, width: int, layers: int, directions: int,
    out: Any = None,
) -> Any:  # fmt: skip
    """Torch's recurrent layers: hidden values of all steps, then the last states, in one vector. `weights`: of
    `recurrent_packed`; attributes as of the op `recurrent`. cuDNN must not round float32 operands to TF32."""
    count, batch = layers * directions, x.shape[1]
    cut = count * batch * width
    first, settings = state[:cut].view(count, batch, width), (True, layers, 0.0, False, directions == 2, False)
    rule = getattr(torch.backends.cudnn, "rnn", torch.backends.cudnn)
    name, strict = ("fp32_precision", "ieee") if hasattr(rule, "fp32_precision") else ("allow_tf32", False)
    before = getattr(rule, name)
    setattr(rule, name, strict)
    try:
        if cell == "lstm":
            memories = state[cut:].view(count, batch, hidden)
            found = torch._VF.lstm(x, (first, memories), weights, *settings)
        else:
            kind = "gru" if cell == "gru" else f"rnn_{activations}"
            found = getattr(torch._VF, kind)(x, first, weights, *settings)
    finally:
        setattr(rule, name, before)
    return torch.cat([v.reshape(-1) for v in found], out=out)


def recurrent_spelled(
    x: Any, state: Any, w: Any, cell: str, variant: str, activations: str, hidden: int, width: int, layers: int,
    directions: int, out: Any = None,
) -> Any:  # fmt: skip
    """Unfused recurrent layers (`scan`), for options that Torch's layers lack."""
    functions = torch.nn.functional
    acts = {
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "softplus": functions.softplus,
        "softsign": functions.softsign,
    }  # fmt: skip
    wide = torch.float32 if x.element_size() == 2 else x.dtype
    x, state, w = x.to(wide), state.to(wide), w.to(wide)
    made = scan(x, state, w, acts, torch.cat, cell, variant, activations, hidden, width, layers, directions)
    return made if out is None else out.copy_(made)


def conv_uneven(x: Any, w: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    """Convolution with asymmetric padding."""
    n = len(pads) // 2
    wide = torch.constant_pad_nd(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])
    return torch.convolution(wide, w, None, strides, [0] * n, dilations, False, [0] * n, groups)


def updated(x: Any, index: Any, updates: Any, axis: int, mode: str, out: Any) -> None:
    """x with updates written at the index along one axis. x may be out. `mode`: "set", or how an update is combined
    with the element there: "add", "mul", "max", "min". Negative indices count from the end. Raises IndexError for
    indices beyond the axis.
    """
    size, index = x.shape[axis], index.long()
    if index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < -size or high >= size:
            raise IndexError(f"index {high if high >= size else low} is out of bounds for axis {axis} with size {size}")
        index = index if low >= 0 else index.remainder(size)
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    if mode == "set":
        out.scatter_(axis, index, updates)
    elif mode == "add":
        out.scatter_add_(axis, index, updates)
    else:
        out.scatter_reduce_(axis, index, updates, {"mul": "prod", "max": "amax", "min": "amin"}[mode])


def rope_out(x: Any, cos: Any, sin: Any, out: Any) -> None:
    """x * cos + rotate_half(x) * sin over the last axis, into out."""
    half = x.shape[-1] // 2
    sin = sin.expand(*sin.shape[:-1], x.shape[-1])
    torch.mul(x, cos, out=out)
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])


#: helper name -> source
HELPERS: dict[str, str] = {**sources_of(__name__), "scan": source_of(scan)}
