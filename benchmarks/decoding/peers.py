"""Decode steps and prefill of the decoders of `benchmarks.decoding.llm` as plain PyTorch layers with static key-value
caches.

Each is timed four ways: eager, both the eager and the compiled step captured in one CUDA graph, where nothing is
launched from the host, and `torch.compile` in the mode "reduce-overhead", for a prefill in the mode "max-autotune".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .peer_weights import FORMS, Float8Weight, Int4Weight
from .queued_time import timed

Step = Callable[[], Any]


class Decoder:
    """Layers of a config with random weights on the device; `room`: positions of a cache, fewer in layers with
    windows. `quantize`: format of the weights of products, the last one included (peer_weights.py); "" for the
    config's dtype."""

    def __init__(self, config: dict[str, Any], batch: int, length: int, quantize: str = "") -> None:
        import torch

        self.torch, self.config, self.batch, self.length = torch, config, batch, length
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = getattr(torch, config["torch_dtype"])
        self.gemma = config["model_type"] == "gemma3_text"
        self.hidden, self.heads, self.kv, self.size = (
            config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
        )
        wide, narrow, inner = self.heads * self.size, self.kv * self.size, config["intermediate_size"]
        names = {"qkv": (wide + 2 * narrow, self.hidden), "o": (self.hidden, wide), "up": (2 * inner, self.hidden),
                 "down": (self.hidden, inner)}  # fmt: skip
        count = config["num_hidden_layers"]
        matrix = (lambda *s: FORMS[quantize](torch, *s, self.device)) if quantize else self._weight
        self.layers = [{n: matrix(*s) for n, s in names.items()} for _ in range(count)]
        kinds = config.get("layer_types", ["full_attention"] * count)
        rooms = [length if k == "full_attention" else min(length, config["sliding_window"]) for k in kinds]
        self.caches = [
            torch.zeros(2, batch, self.kv, room, self.size, dtype=self.dtype, device=self.device) for room in rooms
        ]
        self.gain = torch.ones(self.hidden, dtype=self.dtype, device=self.device)
        self.short = torch.ones(self.size, dtype=self.dtype, device=self.device)
        self.table = self._weight(config["vocab_size"], self.hidden)
        self.last = matrix(config["vocab_size"], self.hidden) if quantize else self.table
        steps = torch.arange(0, self.size, 2, device=self.device).float() / self.size
        self.inverse = 1.0 / config.get("rope_theta", 1e6) ** steps
        weights = [self.last, *(w for x in self.layers for w in x.values())]
        parts = [p for w in weights for p in (w.parts if isinstance(w, Int4Weight | Float8Weight) else (w,))]
        for kept in (*self.caches, self.table, self.gain, self.short, *parts):
            torch._dynamo.mark_static_address(kept)

    def _weight(self, *shape: int) -> Any:
        made = self.torch.empty(*shape, dtype=self.dtype, device=self.device)
        return made.normal_(0, shape[-1] ** -0.5)

    def _product(self, x: Any, weight: Any) -> Any:
        if isinstance(weight, Int4Weight | Float8Weight):
            return weight.product(self.torch, x)
        return self.torch.nn.functional.linear(x, weight)

    def _norm(self, x: Any, by: Any) -> Any:
        return self.torch.nn.functional.rms_norm(x, x.shape[-1:], by, 1e-6)

    def _turned(self, x: Any, angle: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * angle.cos().to(x.dtype) + self.torch.cat((-b, a), -1) * angle.sin().to(x.dtype)

    def _layer(self, x: Any, layer: dict[str, Any], attend: Callable[[Any, Any, Any], Any], angle: Any) -> Any:
        functional, torch = self.torch.nn.functional, self.torch
        rows, tokens = x.shape[:2]
        wide, narrow = self.heads * self.size, self.kv * self.size
        q, k, v = self._product(self._norm(x, self.gain), layer["qkv"]).split((wide, narrow, narrow), -1)
        q, k, v = (y.view(rows, tokens, -1, self.size).transpose(1, 2) for y in (q, k, v))
        if self.gemma:
            q, k = self._norm(q, self.short), self._norm(k, self.short)
        y = attend(self._turned(q, angle), self._turned(k, angle), v)
        y = self._product(y.transpose(1, 2).reshape(rows, tokens, -1), layer["o"])
        x = x + (self._norm(y, self.gain) if self.gemma else y)
        gate, up = self._product(self._norm(x, self.gain), layer["up"]).chunk(2, -1)
        inside = functional.gelu(gate, approximate="tanh") if self.gemma else functional.silu(gate)
        y = self._product(inside * up, layer["down"])
        return x + (torch.nn.functional.rms_norm(y, y.shape[-1:], self.gain, 1e-6) if self.gemma else y)

    def step(self, token: Any, at: Any) -> Any:
        """The next token [batch, 1] after a token at position `at` [1]; query heads of a group are rows over their
        keys."""
        functional = self.torch.nn.functional
        x = functional.embedding(token, self.table)
        angle = at.float()[:, None] * self.torch.cat((self.inverse, self.inverse))
        for layer, cache in zip(self.layers, self.caches):
            room = cache.shape[3]
            seen = (self.torch.arange(room, device=self.device) <= at)[None, None, None]

            def attend(q: Any, k: Any, v: Any, cache: Any = cache, room: int = room, seen: Any = seen) -> Any:
                cache[0].index_copy_(2, at % room, k)
                cache[1].index_copy_(2, at % room, v)
                rows = q.reshape(self.batch, self.kv, -1, self.size)
                found = functional.scaled_dot_product_attention(rows, cache[0], cache[1], attn_mask=seen)
                return found.reshape(self.batch, self.heads, 1, self.size)

            x = self._layer(x, layer, attend, angle)
        return self._product(self._norm(x, self.gain), self.last).argmax(-1)

    def prefill(self, tokens: Any) -> Any:
        """The next token after a prompt [batch, tokens], whose keys and values are written to the caches from position
        0 on."""
        functional = self.torch.nn.functional
        x = functional.embedding(tokens, self.table)
        count = tokens.shape[1]
        angle = self.torch.arange(count, device=self.device).float()[:, None] * self.torch.cat((self.inverse,) * 2)
        for layer, cache in zip(self.layers, self.caches):
            room = min(cache.shape[3], count)

            def attend(q: Any, k: Any, v: Any, cache: Any = cache, room: int = room) -> Any:
                cache[0, :, :, :room] = k[:, :, -room:]
                cache[1, :, :, :room] = v[:, :, -room:]
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv < self.heads)

            x = self._layer(x, layer, attend, angle)
        return self._product(self._norm(x[:, -1:], self.gain), self.last).argmax(-1)


def captured(torch: Any, call: Step) -> Step:
    """A call recorded once as a CUDA graph; calling the result replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda: graph.replay()


def peers(
    config: dict[str, Any],
    batch: int,
    length: int,
    tokens: int,
    show: Callable[[dict[str, Any]], object] = lambda row: None,
    quantize: str = "",
) -> dict[str, Any]:
    """µs per call of the four ways: a decode step with the caches half full for `tokens` = 1, else a prefill of
    `tokens` tokens.

    `quantize`: format of the weights, int4 or fp8. A failure is an entry `..._error` in place of a time. `show`
    receives the entries so far after each way.
    """
    import torch

    decoder = Decoder(config, batch, length, quantize)
    gpu = decoder.device == "cuda"
    wait = torch.cuda.synchronize if gpu else lambda: None
    ids = torch.zeros(batch, tokens, dtype=torch.int64, device=decoder.device)
    at = torch.tensor([length // 2], device=decoder.device)
    plain = (lambda: decoder.step(ids, at)) if tokens == 1 else (lambda: decoder.prefill(ids))

    def compiled(mode: str | None) -> Step:
        made = torch.compile(decoder.step if tokens == 1 else decoder.prefill, mode=mode, dynamic=False, fullgraph=True)
        given = (ids, at) if tokens == 1 else (ids,)
        for _ in range(3):
            made(*given)
        return lambda: made(*given)

    ways: dict[str, Callable[[], Step]] = {"eager": lambda: plain}
    if gpu:
        ways["eager_graph"] = lambda: captured(torch, plain)
        ways["compile_graph"] = lambda: captured(torch, compiled(None))
        mode = "reduce-overhead" if tokens == 1 else "max-autotune"  # both in CUDA graphs
        ways[mode.replace("-", "_")] = lambda: compiled(mode)
    else:
        ways["compile"] = lambda: compiled(None)
    found: dict[str, Any] = {}
    for name, make in ways.items():
        try:
            with torch.no_grad():
                found[f"{name}_us"] = timed(make(), wait)
        except Exception as error:
            found[f"{name}_error"] = f"{type(error).__name__}: {str(error)[:200]}"
        show(found)
    times = [v for k, v in found.items() if k.endswith("_us")]
    return {**found, "best_peer_us": min(times, default=math.nan)}
