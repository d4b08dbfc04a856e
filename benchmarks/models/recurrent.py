"""Recurrent layers with unrolled steps, as exporters write them: further variants for `variants.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.variant import Inputs, Of, brain, single, variant


class Gru(nn.Module):
    """GRU over sequences, unrolled; the products with the state depend on the step before."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(d, d)

    def forward(self, x: Tensor) -> Tensor:
        """The states of all steps."""
        cell, state, states = self.cell, torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            ir, iz, i_n = F.linear(x[:, t], cell.weight_ih, cell.bias_ih).chunk(3, -1)
            hr, hz, hn = F.linear(state, cell.weight_hh, cell.bias_hh).chunk(3, -1)
            reset, update = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
            state = (1 - update) * torch.tanh(i_n + reset * hn) + update * state
            states.append(state)
        return torch.stack(states, 1)


@variant("gru_t32_b8", brain, "b=8 t=32 d=256", "b=2 t=3 d=16")
def gru(b: int, t: int, d: int) -> tuple[nn.Module, Inputs]:
    """A small GRU of 32 steps."""
    return Gru(d), {"x": (b, t, d)}


def _time_mixing(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
    state, outputs = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None, :]), []
    for t in range(r.shape[2]):
        fresh = k[:, :, t, :, None] @ v[:, :, t, None, :]
        outputs.append((r[:, :, t, None, :] @ (u[..., None] * fresh + state))[:, :, 0])
        state = fresh + torch.exp(-torch.exp(w[:, :, t, :, None])) * state
    return torch.stack(outputs, 2)


@variant("rwkv_mixing_t16", single, "b=4 h=12 t=16 n=64", "b=1 h=2 t=3 n=4")
def time_mixing(b: int, h: int, t: int, n: int) -> tuple[nn.Module, Inputs]:
    """RWKV's time mixing over a chunk: states are sums of outer products, with decays that depend on the data."""
    return Of(_time_mixing, u=(h, n)), dict.fromkeys("rkvw", (b, h, t, n))
