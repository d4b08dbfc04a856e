"""Training steps of two processes on the CPU (gloo) with `DistributedDataParallel`, `fully_shard` and
`FullyShardedDataParallel`: losses and weights under `tg.compile` against those without. Not in the test suite, because
it takes half a minute:

    PYTHONPATH=src python tests/torch_compile/two_processes.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import tensor_graphs as tg
from tensor_graphs.torch_compile import judge

QUICK = {"wait": True, "measure": False, "effort": 0, "budget": 1, "verify": False, "cache": False, "backend": "torch"}
DDP = nn.parallel.DistributedDataParallel
STEPS = 4


class Model(nn.Module):
    """A class of its own: Dynamo does not capture the frames of `nn.Sequential` below `DistributedDataParallel`."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Results of two layers with a batch norm between them."""
        return torch.tanh(self.down(self.norm(nn.functional.gelu(self.up(x)))))


def module() -> nn.Module:
    torch.manual_seed(0)
    return Model()


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


#: Name -> (how a module is wrapped, whether programs run).
FORMS: dict[str, tuple[Callable[[nn.Module], Any], bool]] = {
    "data parallel": (DDP, True),
    "data parallel, static graph": (lambda m: DDP(m, static_graph=True, gradient_as_bucket_view=True), True),
    "sharded": (sharded, True),
    "sharded, flat parameters": (lambda m: FullyShardedDataParallel(m, use_orig_params=True, device_id=torch.device("cpu")), False),
}  # fmt: skip


def losses(model: Any, rank: int) -> list[float]:
    """Losses of some training steps with batches of this process."""
    optimizer, found = torch.optim.SGD(model.parameters(), 0.05), []
    for step in range(STEPS):
        torch.manual_seed(10 * step + rank)
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def process(rank: int, file: str) -> None:
    """The work of one process; programs of the second one lose, so that the processes choose differently."""
    measured = judge.timed
    times = {"eager": [2.0] * 5, "program": [1.0] * 5}
    judge.timed = lambda *args: measured(*args) and times  # type: ignore[assignment]
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    for name, (wrap, programs) in FORMS.items():
        times["program"] = [3.0 if rank and name == "data parallel" else 1.0] * 5
        expected = losses(DDP(module()), rank)
        known = set(map(id, tg.torch_compile.reports()))
        compiled = tg.compile(wrap(module()), **QUICK)
        found = losses(compiled, rank)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        ran = {report.runs for report in tg.torch_compile.reports() if id(report) not in known}
        assert ran == {"program" if programs and times["program"][0] < 2 else "eager"}, (name, ran)
        print(f"process {rank}: {name}: {sorted(ran)}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Start both processes, and wait for them."""
    if "RANK" in os.environ:
        warnings.simplefilter("ignore")
        process(int(os.environ["RANK"]), sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, str(Path(folder) / "meeting")]
        both = [subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
        sys.exit(max(one.wait(timeout=300) for one in both))


if __name__ == "__main__":
    main()
