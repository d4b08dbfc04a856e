"""Operators on tensors of size 0, against eager: every size of every operator set to 0, alone and two at a time.

    python -m tests.fuzz.empty [--only NAME] [--optimized]

A case names the sizes of its operands by letters, so that operands that must agree do. Sizes that eager refuses are
left out. (pixel_unshuffle is no case: of an empty tensor eager returns the argument, of another shape than PyTorch
itself declares.)
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F

from .opinfo import Sample, verdicts

SIZES = {"n": 2, "c": 4, "d": 4, "h": 5, "w": 6, "o": 2, "k": 3, "l": 3, "m": 3, "e": 4, "s": 5, "1": 1}
Case = tuple[
    Callable[..., Any], tuple[str, ...]
]  # the operator, and its operands: letters of sizes, "i:" before indices


def reductions() -> Iterator[tuple[str, Case]]:
    """Reductions over every axis, over all, and over the others."""
    for name in ("sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "logsumexp", "argmax", "argmin", "median",
                 "norm", "nansum", "count_nonzero"):  # fmt: skip
        f = getattr(torch, name)
        for dim in (0, 1, 2):
            yield f"{name}.{dim}", (lambda x, f=f, dim=dim: f(x, dim=dim), ("nhw",))
        if name != "logsumexp":
            yield f"{name}.all", (lambda x, f=f: f(x), ("nhw",))
    for name in (
        "max",
        "min",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "cummax",
        "cummin",
        "softmax",
        "log_softmax",
        "sort",
        "argsort",
    ):
        f = getattr(torch, name)
        for dim in (0, 2):
            yield f"{name}.{dim}", (lambda x, f=f, dim=dim: f(x, dim=dim), ("nhw",))
    for k in (0, 1, 2):
        yield f"topk.{k}", (lambda x, k=k: torch.topk(x, k, dim=1), ("nhw",))


CASES: Mapping[str, Case] = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), ("ncw", "ock", "o")),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b), ("nchw", "ockl", "o")),
    "conv2d.groups": (lambda x, w: F.conv2d(x, w, groups=2, stride=2), ("nchw", "ookk")),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), ("ncdhw", "ockkk")),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w), ("ncw", "cok")),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1), ("nchw", "cokl", "o")),
    "conv_transpose2d.padded": (lambda x, w: F.conv_transpose2d(x, w, padding=1), ("ncll", "cokk")),
    "conv_transpose2d.cut": (lambda x, w: F.conv_transpose2d(x, w, padding=1), ("nc11", "co" + "oo")),
    "conv_transpose2d.cut3": (lambda x, w: F.conv_transpose2d(x, w, padding=(1, 1)), ("nc1w", "co" + "ok")),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w), ("ncdhw", "cokkk")),
    "linear": (F.linear, ("nhc", "oc", "o")),
    "matmul": (torch.matmul, ("nhc", "ncw")),
    "matmul.broadcast": (torch.matmul, ("nhc", "cw")),
    "mv": (torch.mv, ("hc", "c")),
    "dot": (torch.dot, ("c", "c")),
    "outer": (torch.outer, ("h", "w")),
    "bmm": (torch.bmm, ("nhc", "ncw")),
    "addmm": (torch.addmm, ("w", "hc", "cw")),
    "baddbmm": (torch.baddbmm, ("nhw", "nhc", "ncw")),
    "einsum": (lambda x, y: torch.einsum("nhc,ncw->whn", x, y), ("nhc", "ncw")),
    "einsum.sum": (lambda x, y: torch.einsum("nhc,mc->m", x, y), ("nhc", "mc")),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=2), ("nhc", "hcw")),
    "kron": (torch.kron, ("hw", "kl")),
    "cdist": (torch.cdist, ("nhc", "nwc")),
    "attention": (F.scaled_dot_product_attention, ("nhse", "nhme", "nhmo")),
    "attention.causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ("nhse", "nhse", "nhse")),
    "attention.mask": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), ("nhse", "nhme", "nhmo", "sm")),
    "multi_head": (lambda x: torch.nn.functional.softmax(x @ x.transpose(-1, -2), -1) @ x, ("nse",)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), ("ncw",)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), ("nchw",)),
    "max_pool2d.at": (lambda x: F.max_pool2d(x, 2, return_indices=True), ("nchw",)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2, padding=1), ("nchw",)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2, ceil_mode=True), ("ncw",)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ("nchw",)),
    "adaptive_avg_pool2d.1": (lambda x: F.adaptive_avg_pool2d(x, 1), ("nchw",)),
    "adaptive_avg_pool2d.0": (lambda x: F.adaptive_avg_pool2d(x, (0, 2)), ("nchw",)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), ("nchw",)),
    "adaptive_max_pool2d.0": (lambda x: F.adaptive_max_pool2d(x, (0, 2)), ("nchw",)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, 2), ("nchw",)),
    "unfold": (lambda x: F.unfold(x, 2), ("nchw",)),
    "fold": (lambda x: F.fold(x, (3, 3), 2), ("nc" + "c",)),
    "interpolate.nearest": (lambda x: F.interpolate(x, scale_factor=2.0), ("nchw",)),
    "interpolate.bilinear": (lambda x: F.interpolate(x, size=(3, 4), mode="bilinear"), ("nchw",)),
    "interpolate.linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear", align_corners=True), ("ncw",)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), ("nchw", "nkl" + "o")),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), ("nchw",)),
    "layer_norm": (lambda x, g: F.layer_norm(x, g.shape, g), ("nhw", "w")),
    "rms_norm": (lambda x, g: F.rms_norm(x, g.shape, g), ("nhw", "w")),
    "group_norm": (lambda x: F.group_norm(x, 2), ("nchw",)),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v), ("nchw", "c", "c")),
    "batch_norm.own": (lambda x: F.batch_norm(x, None, None, training=True), ("nchw",)),
    "instance_norm": (lambda x: F.instance_norm(x), ("nchw",)),
    "normalize": (F.normalize, ("nhw",)),
    "pad": (lambda x: F.pad(x, (1, 2)), ("nhw",)),
    "pad.cut": (lambda x: F.pad(x, (-1, -5)), ("nhw",)),
    "pad.reflect": (lambda x: F.pad(x, (1, 1), mode="reflect"), ("nhw",)),
    "pad.replicate": (lambda x: F.pad(x, (1, 1), mode="replicate"), ("nhw",)),
    "pad.circular": (lambda x: F.pad(x, (1, 1), mode="circular"), ("nhw",)),
    "embedding": (F.embedding, ("i:ns", "hw")),
    "embedding_bag": (F.embedding_bag, ("i:ns", "hw")),
    "one_hot": (lambda i: F.one_hot(i, 5), ("i:ns",)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ("nhw", "nkw")),
    "stack": (lambda x, y: torch.stack([x, y], 1), ("nhw", "nhw")),
    "split": (lambda x: torch.split(x, 2, 1), ("nhw",)),
    "chunk": (lambda x: torch.chunk(x, 2, 1), ("nhw",)),
    "tensor_split": (lambda x: torch.tensor_split(x, 3, 2), ("nhw",)),
    "gather": (lambda x, i: torch.gather(x, 1, i), ("nhw", "i:nkw")),
    "scatter": (lambda x, i, y: torch.scatter(x, 1, i, y), ("nhw", "i:nkw", "nkw")),
    "scatter_add": (lambda x, i, y: torch.scatter_add(x, 1, i, y), ("nhw", "i:nkw", "nkw")),
    "scatter_reduce": (lambda x, i, y: torch.scatter_reduce(x, 1, i, y, "amax"), ("nhw", "i:nkw", "nkw")),
    "index_select": (lambda x, i: torch.index_select(x, 1, i), ("nhw", "i:k")),
    "index_add": (lambda x, i, y: torch.index_add(x, 1, i, y), ("nhw", "i:k", "nkw")),
    "index_copy": (lambda x, i, y: torch.index_copy(x, 1, i, y), ("nhw", "i:m", "nmw")),
    "index_put": (lambda x, i, y: torch.index_put(x, (i,), y), ("hnw", "i:k", "knw")),
    "getitem": (lambda x, i: x[:, i], ("nhw", "i:kl")),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), ("nhw", "i:nkw")),
    "take": (torch.take, ("nhw", "i:k")),
    "roll": (lambda x: torch.roll(x, 1, 1), ("nhw",)),
    "flip": (lambda x: torch.flip(x, [0, 2]), ("nhw",)),
    "rot90": (torch.rot90, ("nhw",)),
    "repeat": (lambda x: x.repeat(2, 0, 1), ("nhw",)),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, 2, 1), ("nhw",)),
    "tile": (lambda x: torch.tile(x, (2, 2)), ("nhw",)),
    "expand": (lambda x: x.expand(x.shape[0], 0, x.shape[2]), ("n1w",)),
    "tril": (torch.tril, ("nhw",)),
    "diagonal": (lambda x: torch.diagonal(x, 1, 1, 2), ("nhw",)),
    "diag_embed": (torch.diag_embed, ("nw",)),
    "trace": (torch.trace, ("hw",)),
    "windows": (lambda x: x.unfold(1, 2, 1), ("nhw",)),
    "diff": (torch.diff, ("nhw",)),
    "where": (lambda x, y: torch.where(x > 0, x, y), ("nhw", "n1w")),
    "add": (torch.add, ("nhw", "1w")),
    "reshape": (lambda x: x.reshape(x.shape[0], -1, 2) if x.shape[0] else x, ("nhc",)),
    "searchsorted": (torch.searchsorted, ("nh", "nw")),
    "bucketize": (torch.bucketize, ("nh", "w")),
    "cross_entropy": (F.cross_entropy, ("nc", "i:n")),
    "mse_loss": (F.mse_loss, ("nhw", "nhw")),
    "cosine_similarity": (F.cosine_similarity, ("nhw", "nhw")),
    "glu": (F.glu, ("nhc",)),
    "gelu": (F.gelu, ("nhw",)),
    "prelu": (F.prelu, ("nchw", "c")),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), ("h", "w")),
    "lstm": (lambda x: torch.cumsum(torch.tanh(x), 0), ("shw",)),
    "fft": (lambda x: torch.fft.rfft(x).abs(), ("nhw",)),
    "unique_rows": (lambda x: torch.vander(x, 3), ("h",)),
    **dict(reductions()),
}  # fmt: skip


def samples(name: str) -> Iterator[Sample]:
    """Samples of a case with each size, and each pair of sizes, set to 0, without those that eager PyTorch refuses."""
    function, operands = CASES[name]
    letters = sorted({c for o in operands for c in o.removeprefix("i:")} - {"1"})
    for gone in [*combinations(letters, 1), *combinations(letters, 2)]:
        torch.manual_seed(0)
        sizes = {c: 0 if c in gone else n for c, n in SIZES.items()}
        tensors = tuple(_tensor(o, sizes) for o in operands)

        def run(*values: Any) -> list[Any]:
            found = function(*values)
            return list(found) if isinstance(found, (list, tuple)) else [found]

        try:
            run(*tensors)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            continue
        yield Sample(f"{name} without {' and '.join(gone)}: {[list(v.shape) for v in tensors]}", tensors, run)


def _tensor(operand: str, sizes: Mapping[str, int]) -> Any:
    shape = [sizes[c] for c in operand.removeprefix("i:")]
    return torch.randint(0, 3, shape) if operand.startswith("i:") else torch.randn(shape)


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--optimized", action="store_true", help="through `optimize` as well")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    every = [s for name in CASES if given.only in name for s in samples(name)]
    for s, verdict in zip(every, verdicts(every, "empty", optimized=given.optimized), strict=True):
        total[verdict.status] += 1
        if verdict.status != "right":
            print(f"{verdict.status}: {s.text}: {verdict.why}"[:500], flush=True)
    print(dict(total))
    sys.exit(bool(total["wrong"]))


if __name__ == "__main__":
    main()
