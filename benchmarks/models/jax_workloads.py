"""The GPU benchmark's workloads in JAX, for XLA as a peer: the same functions of the same arguments, without
convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Array = Any


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32)


def _rms(x: Array, gain: Array) -> Array:
    h = _wide(x)
    return (h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6)).astype(x.dtype) * gain


def _unit(x: Array) -> Array:
    h = _wide(x)
    return (h * jax.lax.rsqrt(jnp.sum(h * h, -1, keepdims=True))).astype(x.dtype)


def _layer_norm(x: Array, gain: Array, shift: Array) -> Array:
    h = _wide(x)
    h = h - jnp.mean(h, -1, keepdims=True)
    return (h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5)).astype(x.dtype) * gain + shift


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def rmsnorm_qkv(x: Array, gain: Array, wq: Array, wk: Array, wv: Array) -> Any:
    h = _rms(x, gain)
    return h @ wq, h @ wk, h @ wv


def gemma_mlp(x: Array, gain: Array, w1: Array, w2: Array, w3: Array) -> Array:
    h = _rms(x, 1 + gain)
    return x + (_gelu(h @ w1) * (h @ w2)) @ w3


def qknorm_attention(q: Array, k: Array, v: Array, gain_q: Array, gain_k: Array) -> Array:
    q, k = _rms(q, gain_q), _rms(k, gain_k)
    scores = _wide(q @ jnp.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
    ahead = jnp.triu(jnp.ones((q.shape[-2], k.shape[-2]), bool), 1)
    return jax.nn.softmax(jnp.where(ahead, -jnp.inf, scores), -1).astype(v.dtype) @ v


def layernorm_mlp(x: Array, gain: Array, shift: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    return x + (jax.nn.gelu(_layer_norm(x, gain, shift) @ w1 + b1, approximate=False) @ w2 + b2)


def gated_mlp_block(x: Array, gain: Array, w1: Array, w2: Array, w3: Array) -> Array:
    h = _rms(x, gain)
    return x + (jax.nn.silu(h @ w1) * (h @ w2)) @ w3


def nasrnn(x: Array, h: Array, *weights: Array) -> Array:
    g = [x @ weights[2 * i] + h @ weights[2 * i + 1] for i in range(8)]
    relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh
    first, second = relu(g[0]) + sigmoid(g[3]), sigmoid(g[1]) + tanh(g[2])
    third, fourth = sigmoid(g[4]) * tanh(g[5]), sigmoid(g[6]) * relu(g[7])
    return tanh(tanh(sigmoid(second) + tanh(third)) * tanh(tanh(first) * tanh(fourth)))


CALLS: dict[str, Callable[..., Any]] = {
    "rmsnorm_linear": lambda x, gain, w: _rms(x, gain) @ w,
    "gated_mlp_up": lambda x, w1, w2: jax.nn.silu(x @ w1) * (x @ w2),
    "rmsnorm_qkv": rmsnorm_qkv,
    "lora": lambda x, w, a, b: x @ w + (x @ a) @ b,
    "gemma_mlp": gemma_mlp,
    "qknorm_attention": qknorm_attention,
    "layernorm_mlp": layernorm_mlp,
    "normalised_update": lambda h, y, alpha: _unit(h + alpha * (_unit(y) - h)),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "pointwise": lambda x, y, z: _gelu(x * y + z) * y + jax.nn.sigmoid(z) * x,
    "matmul_chain": lambda a, b, c: a @ (b @ c),
    "shared_factor": lambda x, a, b: a @ x + b @ x,
    "nasrnn": nasrnn,
    "gated_mlp_block": gated_mlp_block,
}
"""name -> function of inputs and weights, as in `workloads`."""


def on_all(name: str, sets: Sequence[Sequence[Any]]) -> tuple[Callable[[], Any], Any]:
    """A call that runs the workload on every set of Torch arguments as one XLA program, and the first set's result."""
    call = CALLS[name]
    given = [[jax.dlpack.from_dlpack(x.contiguous()) for x in arguments] for arguments in sets]
    together = jax.jit(lambda every: [call(*arguments) for arguments in every])
    first = together(given)[0]
    return lambda: jax.block_until_ready(together(given)), first
