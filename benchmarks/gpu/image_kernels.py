"""Library kernels of image models on a GPU, alone: `python -m benchmarks.gpu.image_kernels [--only NAME ...] [--seconds
S] --keep STORE`.

All library kernels that may compute a part of a model (convolutions in both memory layouts, with and without biases and
activations, norms, poolings, elementwise operations, copies, products, attention) are measured once each, in a cost
store. Starter rows can be made from it (`tensor-graphs db export-starter`): a library may launch several kernels, read
one row with one block, or convert layouts, of which rooflines know nothing.
The models are of the usual kinds, at sizes that no other benchmark has.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tensor_graphs.backends.registry import backends
from tensor_graphs.backends.tuning.job_measuring import measure_jobs
from tensor_graphs.backends.tuning.jobs import Job, job_of
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite

from ..models.cpu_peer_models import ConvNextBlock, NormedBlock, SwinBlock
from ..models.torch_architectures import branches, conv, excite, head, residual

LIBRARY = "torch_cuda"
MOST = 12  # kernels of one template and model: attention alone may have a hundred layouts of its operands
Made = tuple[nn.Module, Tensor]


def inverted(before: int, after: int, kernel: int, stride: int, act: type[nn.Module]) -> nn.Module:
    """Inverted residual with squeeze and excitation."""
    wide = 4 * before
    body = [conv(before, wide, 1, act=act), conv(wide, wide, kernel, stride, wide, act), excite(wide),
            nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)]  # fmt: skip
    return residual(*body) if stride == 1 and before == after else nn.Sequential(*body)


def upsampled(wide: int, narrow: int) -> nn.Module:
    """Group norm, SiLU and a convolution after an enlargement of an image."""
    return nn.Sequential(
        nn.GroupNorm(32, wide), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(wide, narrow, 3, padding=1)
    )


#: Models of usual kinds: name -> maker of (module, input).
MODELS: dict[str, Callable[[], Made]] = {
    "mobile": lambda: (nn.Sequential(conv(3, 32, 3, 2, act=nn.Hardswish), inverted(32, 48, 5, 2, nn.Hardswish), inverted(48, 48, 3, 1, nn.ReLU),
                                     inverted(48, 112, 3, 2, nn.Hardswish), inverted(112, 112, 5, 1, nn.Hardswish), *head(112)), torch.randn(2, 3, 160, 160)),
    "dense": lambda: (nn.Sequential(conv(3, 48, 7, 2), nn.MaxPool2d(3, 2, 1), branches(nn.Identity(), nn.Sequential(conv(48, 96, 1), conv(96, 24))),
                                    conv(72, 36, 1), nn.AvgPool2d(2), branches(nn.Identity(), conv(36, 24, 3)), *head(60)), torch.randn(8, 3, 128, 128)),
    "grouped": lambda: (nn.Sequential(residual(conv(160, 160, 1), conv(160, 160, 3, 1, 10), nn.Conv2d(160, 160, 1)), nn.ReLU(), conv(160, 320, 3, 2),
                                      residual(conv(320, 320, 1), conv(320, 320, 3, 1, 20), excite(320)), *head(320)), torch.randn(4, 160, 40, 40)),
    "normed": lambda: (nn.Sequential(NormedBlock(96, 96, 1), NormedBlock(96, 192, 2), *head(192)), torch.randn(4, 96, 48, 48)),
    "upsampled": lambda: (nn.Sequential(upsampled(256, 192), upsampled(192, 96), upsampled(96, 64), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()),
                          torch.randn(1, 256, 40, 40)),
    "windows": lambda: (nn.Sequential(SwinBlock(128, 4, 48, 8, 0), SwinBlock(128, 4, 48, 8, 4)), torch.randn(1, 48 * 48, 128)),
    "convnext": lambda: (nn.Sequential(ConvNextBlock(160), nn.Conv2d(160, 320, 2, 2), ConvNextBlock(320), *head(320)), torch.randn(4, 160, 40, 40)),
}  # fmt: skip


def jobs_of(name: str, dtype: str) -> list[Job]:
    """The library kernels that may compute parts of a model, as tuning jobs without duplicates."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    module, x = MODELS[name]()
    kind = getattr(torch, dtype)
    session = Session(Options(backend="gpu", budget=math.inf))
    graph = as_graph(module.eval().requires_grad_(False).to(kind), (x.to(kind),))
    view = rewrite(session, prepare(session, graph, None).work).view
    found, count = dict[Any, Job](), Counter[str]()
    for candidate in hypergraph(session, view, [backends()[LIBRARY]]).candidates:
        if candidate.template.backend == LIBRARY and not candidate.is_view:
            job = job_of(candidate.template, candidate.call)
            if repr(job) not in found and count[job["template"]] < MOST:
                found[repr(job)] = job
                count[job["template"]] += 1
    return list(found.values())


def main() -> None:
    """Measure the kernels of all models in turn, those of each model as soon as they are known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", default=["float16", "float32"])
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--workers", type=int, default=6, help="processes that find kernels")
    parser.add_argument("--count", action="store_true", help="only print how many kernels there are")
    parser.add_argument("--keep", type=Path, help="cost store that keeps the measured rows")
    options = parser.parse_args()
    until, asked = time.monotonic() + options.seconds, [(n, d) for d in options.dtypes for n in options.only]
    found: list[Job] = []
    with ProcessPoolExecutor(options.workers) as pool:
        made = {pool.submit(jobs_of, *one): one for one in asked}
        for done in as_completed(made):
            print(*made[done], len(done.result()), flush=True)
            found += done.result()
    found = list({repr(job): job for job in found}.values())
    print(f"{len(found)} kernels")
    if options.keep and not options.count:
        outcome = measure_jobs(shuffled(found), options.keep, seconds=until - time.monotonic())
        print(f"{outcome.measured} measured; {dict(outcome.bad)}")


def shuffled(jobs: Sequence[Job]) -> list[Job]:
    """The jobs in an order that mixes models, so that a run that ends early has some of each."""
    order = torch.randperm(len(jobs), generator=torch.Generator().manual_seed(0)).tolist()
    return [jobs[i] for i in order]


if __name__ == "__main__":
    main()
