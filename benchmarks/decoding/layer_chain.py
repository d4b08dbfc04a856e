"""Schedules of the kernels of a decoder layer, timed beside each other: `python -m benchmarks.decoding.layer_chain
[CHAIN ...] [--schedules N] [--turns N] [--workers N] [--out FILE]`.

A chain is the kernels of a decode step's layers in CUDA C++ (batch 1, weights of each layer of its own, attention over
half-full caches) in one CUDA graph: each reads what the one before it wrote, starts while that one runs (programmatic
dependent launch), and reads weights and caches before it waits for it ("held", see decision 38). The chain begins with
each kernel's best guess; then each kernel in turn takes the fastest of up to `--schedules` schedules, `--turns` times.

Printed: µs of the chain with the first guesses as measured alone and held, of the chain without each kernel, of the
best schedules of each kernel, and of the last chain. Schedules whose result differs from that of the first chain by
more than 5 % are left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate.kernel_text import KernelText, kernel_text, module_of
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.extract.model.kernel import Call
from tensor_graphs.models.common import quantization

from .kernels import LAYERS, Layer, call_of, layer_product, normed, writing_attention

Schedule = Mapping[str, int]
DIFFERENT, REPEATS, SAMPLES, SHOWN = 0.05, 25, 5, 4
OWN = "*"  # marks an operand of which each layer has one of its own: a weight, or a cache


@dataclass(frozen=True)
class Link:
    """A kernel of a chain. `make`: builds its roots; `operands`: operand -> buffer, "buffer:first:end" or `OWN`;
    `results`: the buffer of each root, "=operand" for a state written in place."""

    name: str
    make: Callable[[], list[Tensor]]
    operands: Mapping[str, str]
    results: Sequence[str]

    @property
    def constant(self) -> frozenset[str]:
        """Operands that are read before the wait for the previous kernel."""
        return frozenset(o for o, place in self.operands.items() if place in (OWN, "at"))


def residual(x: list[Tensor]) -> list[Tensor]:
    """A product of one row with the residual stream added."""
    return [t.input("stream", x[0].shape) + x[0]]


def packed(x: Tensor, columns: int, form: str, name: str = "w") -> Tensor:
    """Product of a row with a quantized weight of `columns` columns."""
    size = int(x.shape[-1])
    codes = t.input(name, (columns, size // 2 if form == "int4" else size), "uint8")
    scale = t.input(f"{name}s", (columns, size // quantization.group_of(form, size)))
    return t.matmul(x, t.transpose(quantization.dequantized(form, codes, scale)))


def gemma() -> list[Link]:
    """A layer of Gemma-3-270M with a ring of 768 positions."""
    one = LAYERS["layer gemma"]
    own = dict.fromkeys(("before", "gain", "w"), OWN)
    heads = {"q": "qkv:0:1024", "k": "qkv:1024:1280", "v": "qkv:1280:1536", "at": "at", "cos": "cos", "sin": "sin"}
    states = dict.fromkeys(("qg", "kg", "keys", "values"), OWN)
    return [
        Link("stream, norm, qkv", lambda: layer_product(one.hidden, one.qkv, 2, stored=True), {"x": "s", "y": "y", **own}, ["qkv", "t"]),
        Link("attention, rows", lambda: writing_attention(1, 4, 256, 768, norm=True, window=512), {**heads, **states}, ["a", "=keys", "=values"]),
        Link("o", lambda: layer_product(one.own, one.hidden, 0), {"x": "a", "w": OWN}, ["z"]),
        Link("stream, norm, gate-up", lambda: layer_product(one.hidden, one.inner, 2, one.act, stored=True), {"x": "t", "y": "z", **own, "v": OWN}, ["g", "s"]),
        Link("down", lambda: layer_product(one.inner, one.hidden, 0), {"x": "g", "w": OWN}, ["y"]),
    ]  # fmt: skip


def llama(one: Layer, form: str = "", *, apart: bool = False) -> list[Link]:
    """A layer of a Llama of the sizes `one`, in bfloat16 or with weights in `form`; `apart`: norms are kernels."""
    q, k = one.own, one.groups * one.head
    norm = lambda: t.input("x", (1, one.hidden)) if apart else normed(t.input("x", (1, one.hidden)), "gain")
    gain = {} if apart else {"gain": OWN}

    def product(x: Tensor, columns: int, name: str = "w") -> Tensor:
        if form:
            return packed(x, columns, form, name)
        return t.matmul(x, t.transpose(t.input(name, (columns, int(x.shape[-1])))))

    def weights(*names: str) -> dict[str, str]:
        return dict.fromkeys((*names, *(f"{n}s" for n in names if form)), OWN)

    heads = {"q": f"qkv:0:{q}", "k": f"qkv:{q}:{q + k}", "v": f"qkv:{q + k}:{q + 2 * k}"}
    rest = {"at": "at", "cos": "cos", "sin": "sin", "keys": OWN, "values": OWN}
    alone = [Link("norm", lambda: [normed(t.input("x", (1, one.hidden)), "gain")], {}, ["n"])]
    begin = lambda stream: [replace(alone[0], operands={"x": stream, "gain": OWN})] if apart else []
    row = lambda stream: {"x": "n" if apart else stream, **gain}
    return [
        *begin("s"),
        Link("qkv", lambda: [product(norm(), q + 2 * k)], {**row("s"), **weights("w")}, ["qkv"]),
        Link("attention, rows", lambda: writing_attention(one.groups, one.heads, one.head, 1024), heads | rest, ["a", "=keys", "=values"]),
        Link("o", lambda: residual([product(t.input("x", (1, q)), one.hidden)]), {"x": "a", "stream": "s", **weights("w")}, ["t"]),
        *begin("t"),
        Link("gate-up", lambda: [c.silu(product(norm(), one.inner)) * product(norm(), one.inner, "v")], {**row("t"), **weights("w", "v")}, ["g"]),
        Link("down", lambda: residual([product(t.input("x", (1, one.inner)), one.hidden)]), {"x": "g", "stream": "t", **weights("w")}, ["s"]),
    ]  # fmt: skip


B8 = Layer(4096, 14336, 4, 8, 128, c.silu)
#: name -> (layers, kernels of a layer)
CHAINS: dict[str, tuple[int, Callable[[], list[Link]]]] = {
    "gemma": (18, gemma),
    "llama-1b": (16, lambda: llama(LAYERS["layer llama-1b"])),
    "llama-1b, norms apart": (16, lambda: llama(LAYERS["layer llama-1b"], apart=True)),
    **{
        f"llama-8b {form}{', norms apart' if apart else ''}": (8, lambda form=form, apart=apart: llama(B8, form, apart=apart))  # type: ignore[misc]
        for form in ("int4", "fp8") for apart in (False, True)
    },
}  # fmt: skip


@cache
def made(chain: str) -> list[tuple[Link, GeneratedKernel, Call]]:
    """(kernel of the chain, its template, its call)."""
    found = []
    for link in CHAINS[chain][1]():
        template = template_of(CUDA.emitter, link.make())
        found.append((link, template, call_of(template)))
    return found


def text_of(chain: str, index: int, schedule: Schedule, held: bool) -> KernelText:
    """The source of the kernel `index` of a chain with a schedule."""
    link, template, call = made(chain)[index]
    constant = link.constant if held and schedule.get("early") else frozenset[str]()
    return kernel_text(template, replace(call, schedule=schedule, constant=constant))


def compiled(job: tuple[str, int, Schedule, bool]) -> bool:
    """Whether a kernel can be compiled; its binary is in the cache folder then."""
    try:
        for kernel in module_of(text_of(*job)).CudaKernel.known.values():
            kernel.compiled("sm_90")
    except Exception:
        return False
    return True


def schedules(chain: str, index: int, count: int) -> list[Schedule]:
    """At most `count` schedules with programmatic dependent launch, best guess first."""
    _, template, call = made(chain)[index]
    assert template.space is not None
    return [dict(s) for s in template.space(call) if s.get("early") and not s.get("split")][:count]


class Chain:
    """The operands of a chain on the GPU, and its kernels with the schedules tried so far."""

    def __init__(self, name: str) -> None:
        import torch

        self.torch, self.name, self.layers = torch, name, CHAINS[name][0]
        self.modules: dict[str, tuple[Any, KernelText, Any]] = {}
        self.buffers: dict[str, Any] = {"at": torch.full((1,), 500, device="cuda")}
        torch.manual_seed(0)
        for link, _, call in made(name):
            for place, out in zip(link.results, call.outputs, strict=True):
                if place[0] != "=":
                    self.buffers[place] = self._drawn("", out.type)
            for o in ("cos", "sin"):
                if o in link.operands:
                    self.buffers.setdefault(o, self._drawn("", call.operands[o].type))
        self.own = [[self._own(link, call) for link, _, call in made(name)] for _ in range(self.layers)]
        self.first = {n: x.clone() for n, x in self.buffers.items()}

    def _drawn(self, name: str, kind: Any) -> Any:
        shape = tuple(kind.shape)
        if kind.dtype == "uint8":
            return self.torch.randint(0, 119, shape, dtype=self.torch.uint8, device="cuda")
        scale = shape[-1] ** -0.5 if name in ("w", "v") else 1e-3 if name in ("ws", "vs") else 1.0
        values = self.torch.randn(shape, dtype=self.torch.bfloat16, device="cuda") * scale
        return 1 + 0.1 * values if len(shape) == 1 else values

    def _own(self, link: Link, call: Call) -> dict[str, Any]:
        return {o: self._drawn(o, call.operands[o].type) for o, place in link.operands.items() if place == OWN}

    def _place(self, text: str) -> Any:
        name, *ends = text.split(":")
        return self.buffers[name].reshape(-1)[slice(*map(int, ends))] if ends else self.buffers[name]

    def _module(self, index: int, schedule: Schedule, held: bool) -> tuple[Any, KernelText, Any]:
        text = text_of(self.name, index, schedule, held)
        if text.text not in self.modules:
            scratch = self.torch.zeros(text.scratch or 1, dtype=self.torch.uint8, device="cuda")
            self.modules[text.text] = module_of(text), text, scratch
        return self.modules[text.text]

    def _run(self, kernels: Sequence[tuple[Any, KernelText, Any]], without: int) -> None:
        for own in self.own:
            for i, ((link, *_), (module, text, scratch)) in enumerate(zip(made(self.name), kernels, strict=True)):
                given = {o: own[i][o] if place == OWN else self._place(place) for o, place in link.operands.items()}
                results = [given[r[1:]] if r[0] == "=" else self.buffers[r] for r in link.results]
                if i != without:
                    module.run(*(given[o] for o in text.operands), *results, scratch)

    def time(self, chosen: Sequence[Schedule], held: bool, without: int = -1) -> tuple[float, Any]:
        """(µs of the chain in a CUDA graph, the best of some samples; the residual stream after the first run), all
        kernels but `without`."""
        torch = self.torch
        kernels = [self._module(i, s, held) for i, s in enumerate(chosen)]
        for n, x in self.first.items():
            self.buffers[n].copy_(x)
        self._run(kernels, without)
        result, graph, times = self.buffers["s"].double(), torch.cuda.CUDAGraph(), list[float]()
        with torch.cuda.graph(graph):
            self._run(kernels, without)
        graph.replay()
        for _ in range(SAMPLES):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(REPEATS):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / REPEATS)
        return min(times), result


def search(name: str, found: Sequence[Sequence[Schedule]], turns: int) -> Iterator[dict[str, Any]]:
    """Yields rows (`what`, `us`, and more) of a chain, whose kernels have the schedules `found`."""
    chain, best, names = Chain(name), [f[0] for f in found], [link.name for link, *_ in made(name)]
    us, want = chain.time(best, held=False)
    yield {"what": "as measured alone", "us": us, "layers": chain.layers}
    us, _ = chain.time(best, held=True)
    yield {"what": "held", "us": us}
    for i, kernel in enumerate(names):
        yield {"what": f"held, without {kernel}", "us": chain.time(best, True, without=i)[0]}
    for turn in range(turns):
        for i, kernel in enumerate(names):
            tried = []
            for s in found[i]:
                new, got = chain.time([s if j == i else x for j, x in enumerate(best)], held=True)
                if float((got - want).norm() / want.norm()) < DIFFERENT:
                    tried.append((new, s))
            tried.sort(key=lambda pair: pair[0])
            us, best[i] = min([(us, best[i]), *tried[:1]], key=lambda pair: pair[0])
            yield {"what": f"turn {turn}: {kernel}", "us": us, "best": best[i], "tried": tried}
    yield {"what": "the last chain", "us": chain.time(best, held=True)[0], "schedules": best}


def main() -> None:
    """Time the chains named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chains", nargs="*", choices=[[], *CHAINS], help="all by default")
    parser.add_argument("--schedules", type=int, default=12)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8, help="compile processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen, found, rows = options.chains or list(CHAINS), {}, dict[str, Any]()
    for name in chosen:  # compiled before this process uses the GPU, so that its children may
        spaces = [schedules(name, i, options.schedules) for i in range(len(made(name)))]
        pairs = [(i, s) for i, space in enumerate(spaces) for s in space]
        jobs = [
            *((name, *pair, True) for pair in pairs),
            *((name, i, space[0], False) for i, space in enumerate(spaces)),
        ]
        with ProcessPoolExecutor(options.workers, multiprocessing.get_context("fork")) as pool:
            good = dict(zip(map(repr, jobs), pool.map(compiled, jobs), strict=True))
        found[name] = [[s for s in space if good[repr((name, i, s, True))]] for i, space in enumerate(spaces)]
    for name in chosen:
        rows[name] = []
        for row in search(name, found[name], options.turns):
            rows[name].append(row)
            print(f"{name}: {row['what']:32} {row['us']:8.1f} µs {row.get('best', '')}", flush=True)
            for us, s in row.get("tried", ())[:SHOWN]:
                print(f"    {us:8.1f} {json.dumps(s)}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
