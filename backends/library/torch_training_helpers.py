"""Helper functions of emitted programs that run Torch's gradients on the CPU or on a GPU.

Their source is copied into emitted programs: each may use only `torch` and those that its kernel names in `setup`.
Those with several results return new tensors; none synchronizes with the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir.definitions import sources_of

if TYPE_CHECKING:
    import torch


def never_read(like: Any, shape: Any, made: dict[Any, Any] = {}) -> Any:  # noqa: B006  (kept between calls)
    """A tensor of which only the shape counts, with the dtype of `like`; `made`: those of earlier calls. Memory that is
    never touched costs nothing, but asking for it at each call does."""
    key = tuple(shape), like.dtype
    if key not in made:
        made[key] = torch.empty(shape, dtype=like.dtype)
    return made[key]


def conv_input_gradient(g: Any, w: Any, shape: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    """Gradient of a convolution's input of the shape `shape`, from its result's gradient g and weight w."""
    like = never_read(g, shape)
    return torch.ops.aten.convolution_backward(
        g, like, w, None, strides, pads, dilations, False, [0] * len(pads), groups, [True, False, False]
    )[0].contiguous()


def conv_weight_gradient(x: Any, g: Any, shape: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    """Gradient of a convolution's weight of the shape `shape`, from its input x and its result's gradient g."""
    like = never_read(g, shape)
    return torch.ops.aten.convolution_backward(
        g, x, like, None, strides, pads, dilations, False, [0] * len(pads), groups, [False, True, False]
    )[1].contiguous()


def cudnn_conv_gradient(
    index: int, g: Any, other: Any, shape: Any, strides: Any, pads: Any, dilations: Any, groups: int, last: bool, tuned: bool,
    tf32: bool,
) -> Any:  # fmt: skip
    """Gradient of a convolution's input (`index` 0; `other` is its weight) or weight (1; `other` is its input), which
    has the shape `shape`, on a GPU. `last`: images are channels-last, and so is the input's gradient. `tuned`: cuDNN
    times its algorithms in the first call. `tf32`: it rounds float32 to TF32, which it otherwise must not do."""
    form = torch.channels_last if last else torch.contiguous_format
    g, other = (v.to(g.dtype).contiguous(memory_format=form) for v in (g, other))
    like = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=form)  # only its shape and layout count
    x, w = (other, like) if index else (like, other)
    rule = getattr(torch.backends.cudnn, "conv", torch.backends.cudnn)
    name, values = (
        ("fp32_precision", ("ieee", "tf32")) if hasattr(rule, "fp32_precision") else ("allow_tf32", (False, True))
    )
    before = getattr(rule, name), torch._C._get_cudnn_benchmark()
    setattr(rule, name, values[tf32])
    torch._C._set_cudnn_benchmark(tuned)  # the attribute of torch.backends.cudnn may be frozen
    try:
        made = torch.ops.aten.convolution_backward(
            g, x, w, None, strides, pads, dilations, False, [0] * len(pads), groups, [index == 0, index == 1, False]
        )[index]
    finally:
        setattr(rule, name, before[0])
        torch._C._set_cudnn_benchmark(before[1])
    return made.contiguous(memory_format=torch.contiguous_format if index else form)


def rounded(values: Any, *kinds: Any) -> Any:
    """A result, or a tuple of results, in dtypes."""
    return tuple([v.to(k) for v, k in zip(values, kinds)]) if len(kinds) > 1 else values.to(*kinds)


def layer_norm_gradient(g: Any, x: Any, gain: Any, mean: Any, deviation: Any, lines: Any) -> Any:
    """Gradient of a layer norm's operand; with `lines`, (it, gradients of gain and shift as tensors of this shape)."""
    wanted = [True, bool(lines), bool(lines)]
    made = torch.ops.aten.native_layer_norm_backward(g, x, gain.shape, mean, deviation, gain, gain, wanted)
    return (made[0], *[v.view(lines) for v in made[1:]]) if lines else made[0]


def batch_norm_gradient(g: Any, x: Any, gain: Any, mean: Any, deviation: Any, lines: Any) -> Any:
    """Gradient of a batch norm's operand in training; with `lines`, (it, gradients of gain and shift as tensors of this
    shape)."""
    wanted = [True, bool(lines), bool(lines)]
    made = torch.ops.aten.native_batch_norm_backward(g, x, gain, None, None, mean, deviation, True, 0.0, wanted)
    return (made[0], *[v.view(lines) for v in made[1:]]) if lines else made[0]


def batch_norm_statistics(x: Any, gain: Any, shift: Any, eps: float, cudnn: bool) -> Any:
    """(batch norm, mean, variance, reciprocal deviation of each channel), by PyTorch's own kernels or by cuDNN."""
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    running = torch.zeros((2, x.shape[1]), dtype=kind, device=x.device)  # become the statistics, with the momentum 1
    if cudnn:
        made = torch.ops.aten.cudnn_batch_norm(x, gain, shift, running[0], running[1], True, 1.0, eps)
    else:
        made = torch.ops.aten._native_batch_norm_legit(x, gain, shift, running[0], running[1], True, 1.0, eps)
    count = x.numel() // x.shape[1]
    return made[0], made[1], running[1] * ((count - 1) / count), made[2]


def group_norm_gradient(g: Any, x: Any, gain: Any, mean: Any, deviation: Any, groups: int, shift: Any) -> Any:
    """Gradient of a group norm's operand; with `shift`, (it, gradient of the gain, gradient of the shift as a
    tensor of this shape)."""
    n, channels = x.shape[:2]
    wanted = [True, bool(shift), bool(shift)]
    made = torch.ops.aten.native_group_norm_backward(
        g, x, mean, deviation, gain, n, channels, x[:1, :1].numel(), groups, wanted
    )
    return (made[0], made[1], made[2].view(shift)) if shift else made[0]


def group_norm_statistics(x: Any, gain: Any, shift: Any, groups: int, eps: float) -> Any:
    """(group norm, mean, reciprocal deviation of each group)."""
    n, channels = x.shape[:2]
    return torch.ops.aten.native_group_norm(x, gain, shift, n, channels, x[:1, :1].numel(), groups, eps)


def max_pool_gradient(g: Any, indices: Any, shape: Any) -> Any:
    """Gradient of max pooling's operand, of this shape: each element of g added at its index into the flattened spatial
    axes."""
    made = g.new_zeros(shape)
    made.flatten(2).scatter_add_(2, indices.flatten(2), g.flatten(2))
    return made


def with_heads(x: Any, inside: bool) -> Any:
    """A tensor [batch, heads, T, D] whose memory is row-major, or with `inside` in the order [batch, T, heads, D]."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if inside else x.contiguous()


def attention_statistics(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, inside: bool) -> Any:
    """(attention of [batch, heads, T, D] in the memory order of `with_heads`, logsumexp of its scores: [..., T, 1])."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    made, sums = flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return with_heads(made, inside), sums.unsqueeze(-1).contiguous()


def attention_gradients(
    g: Any, q: Any, k: Any, v: Any, y: Any, statistics: Any, mask: Any, scale: float, causal: bool, inside: bool
) -> Any:
    """Gradients of query, key and value of attention with the result y, from the logsumexp of its scores: [batch,
    heads, T, D], or with `inside` [batch, T, heads, D]."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    made = backward(g, q, k, v, y, statistics.squeeze(-1), 0.0, causal, attn_mask=mask, scale=scale)
    return tuple([(v.transpose(1, 2) if inside else v).contiguous() for v in made])


def aligned_mask(mask: Any, q: Any, k: Any) -> Any:
    """A mask of attention's scores in the dtype of q, for all heads, with rows that begin at multiples of 16
    elements."""
    wide = torch.nn.functional.pad(mask.to(q.dtype), (0, -k.shape[2] % 16))
    return wide[..., : k.shape[2]].expand(*q.shape[:3], k.shape[2])


def fused_attention(kernel: str, q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, inside: bool) -> Any:
    """(attention of [batch, heads, T, D] in the memory order of `with_heads`, float32 logsumexp of its scores, [batch,
    heads, T, 1]) by a GPU's fused attention `kernel`: "efficient", "flash" or "cudnn"."""
    rows = q.shape[2]
    if kernel == "efficient":  # its logsumexp has a multiple of 32 rows
        bias = None if mask is None else aligned_mask(mask, q, k)
        made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)
    elif kernel == "flash":
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    else:
        made = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    return with_heads(made[0], inside), made[1][:, :, :rows].reshape(*q.shape[:3], 1).contiguous()


def in_own_thread(function: Any) -> Any:
    """The result of a function that runs in a thread for programs only, on the caller's stream.

    PyTorch keeps what it has prepared for cuDNN's attention per thread, and finds a gradient's by sizes and strides of
    query, key and value only, although the strides of the result and its gradient in the first call are part of it: in
    a thread in which they are always the same, none is found that was made for others.
    """
    from concurrent.futures import ThreadPoolExecutor

    stream = torch.cuda.current_stream()

    def run() -> Any:
        with torch.cuda.stream(stream), torch.no_grad():
            return function()

    threads = vars(torch.cuda)
    if "_programs_cudnn" not in threads:
        threads.setdefault("_programs_cudnn", ThreadPoolExecutor(1, "cudnn attention"))
    return threads["_programs_cudnn"].submit(run).result()


def fused_attention_gradients(
    kernel: str, g: Any, q: Any, k: Any, v: Any, y: Any, statistics: Any, mask: Any, scale: float, causal: bool, inside: bool
) -> Any:  # fmt: skip
    """Gradients of query, key and value of a GPU's fused attention `kernel` ("efficient", "flash", "cudnn") with the
    result y, from the logsumexp of its scores: [batch, heads, T, D], or with `inside` [batch, T, heads, D].

    Without dropout the state of random numbers is not read. The kernels take y to lie in memory as their own result.
    """
    y = y if kernel == "flash" else with_heads(y, True)
    rows, columns, sums = q.shape[2], k.shape[2], statistics.squeeze(-1)
    if kernel == "efficient":
        seed = torch.empty((), dtype=torch.int64, device=q.device)
        bias = None if mask is None else aligned_mask(mask, q, k)
        sums = torch.nn.functional.pad(sums, (0, -rows % 32), value=torch.inf) if rows % 32 else sums
        made = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            g, q, k, v, bias, y, sums, seed, seed, 0.0, [True, True, True, False], causal, scale=scale
        )
    elif kernel == "flash":
        seed = torch.empty(2, dtype=torch.uint64, device=q.device)
        made = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, y, sums, None, None, rows, columns, 0.0, causal, seed, seed[0], scale=scale
        )
    else:
        seed = torch.empty((), dtype=torch.int64, device=q.device)
        g, backward = with_heads(g, True), torch.ops.aten._scaled_dot_product_cudnn_attention_backward
        given = g, q, k, v, y, statistics, seed, seed, None, None, None, rows, columns, 0.0, causal
        made = in_own_thread(lambda: backward(*given, scale=scale))
    return tuple([(v.transpose(1, 2) if inside else v).contiguous() for v in made[:3]])


#: helper name -> source
HELPERS: dict[str, str] = sources_of(__name__)
