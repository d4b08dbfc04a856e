"""A decode step of a decoder on the CPU in PyTorch, eager and compiled, with the layers of peers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .peers import Decoder


def torch_steps(config: dict[str, Any], length: int, threads: int) -> dict[str, Callable[[], object]]:
    """Calls of a decode step of one row over caches of `length` positions, half full: `torch`, and `torch.compile` in
    its mode max-autotune-no-cudagraphs, compiled now.

    `config`: fields of a config.json whose `torch_dtype` is that of weights and caches. `threads`: PyTorch's threads.
    """
    import torch

    torch.set_num_threads(threads)
    decoder = Decoder({**config, "head_dim": config["hidden_size"] // config["num_attention_heads"]}, 1, length)
    token, at = torch.ones(1, 1, dtype=torch.int64), torch.tensor([length // 2])
    compiled = torch.compile(decoder.step, mode="max-autotune-no-cudagraphs")

    def call(step: Callable[[Any, Any], Any]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return step(token, at)

        return run

    found = {"torch": call(decoder.step), "torch-compiled": call(compiled)}
    for one in found.values():
        one()
    return found


__all__ = ["torch_steps"]
