"""A variant of the GPU benchmark's workloads: a module with its parameters and inputs, registered by a decorator.

It is written as in a user's model and not for the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.workloads import Shape, flat

half, brain, single = torch.float16, torch.bfloat16, torch.float32
Inputs = Mapping[str, "Shape | Below"]


Make = Callable[..., tuple[nn.Module, Inputs]]


@dataclass(frozen=True)
class Below:
    """An integer input of random numbers below a bound."""

    shape: Shape
    bound: int


@dataclass(frozen=True)
class Variant:
    """A module and its inputs at some sizes and a dtype, as `gpu.Case` measures them.

    `listed`: whether a call reads all weights; if not, there is no limit from bytes.
    """

    name: str
    make: Make
    sizes: Mapping[str, int]
    dtype: torch.dtype
    listed: bool = True
    layout: torch.memory_format = (
        torch.contiguous_format
    )  # of four-dimensional arguments: the one in which peers are fastest
    onnx: bool = False  # ours is made of an ONNX file
    unread: tuple[str, ...] = ()  # weights of which a call reads a few rows
    tolerance: float | None = None  # `tolerance=` of `tg.optimize`; if given, peers may round float32 to TF32
    wanted: float | None = None
    seen: float | None = None
    jax: str = ""

    @cached_property
    def _made(self) -> tuple[nn.Module, Inputs]:
        torch.manual_seed(0)
        module, inputs = self.make(**self.sizes)
        with torch.no_grad():
            for p in module.parameters():
                if p.dim() == 1:  # gains of one and shifts of nothing would hide what is wrong with them
                    p += 0.1 * torch.randn_like(p)
        return module.requires_grad_(False).eval().to(self.dtype), inputs

    @property
    def inputs(self) -> Inputs:
        """Shapes of the inputs by name."""
        return self._made[1]

    def arguments(self, device: str, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
        """(random inputs, the module's parameters and buffers) on a device."""
        module, inputs = self._made
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            torch.randint(x.bound, x.shape, generator=generator) if isinstance(x, Below)
            else torch.randn(x, generator=generator).to(self.dtype)
            for x in inputs.values()
        ]  # fmt: skip
        weights = [x.detach() for x in self._weights(module).values()]
        laid = lambda x: x.contiguous(memory_format=self.layout if x.dim() == 4 else torch.contiguous_format)
        return [laid(x.to(device)) for x in drawn], [laid(x.to(device)) for x in weights]

    @staticmethod
    def _weights(module: nn.Module) -> dict[str, Tensor]:
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def call(self, *arguments: Tensor) -> Any:
        """The module as a function of its inputs and weights."""
        module, inputs = self._made
        weights = dict(zip(self._weights(module), arguments[len(inputs) :], strict=True))
        return torch.func.functional_call(module, weights, arguments[: len(inputs)])

    def module(self, weights: list[Tensor]) -> nn.Module:
        """A copy of the module with these weights."""
        module = deepcopy(self._made[0])
        with torch.no_grad():
            for own, given in zip(self._weights(module).values(), weights, strict=True):
                own.copy_(given)
        return module

    @cached_property
    def _counted(self) -> tuple[float, float]:
        from torch.utils.flop_counter import FlopCounterMode

        inputs, weights = ([x.to("meta") for x in part] for part in self.arguments("cpu"))
        with FlopCounterMode(display=False) as counter:
            results = flat(self.call(*inputs, *weights))
        read = [x for n, x in zip(self._weights(self._made[0]), weights, strict=True) if n not in self.unread]
        nbytes = sum(x.numel() * x.itemsize for x in (*inputs, *read, *results))
        return float(nbytes), float(counter.get_total_flops())

    @property
    def bytes(self) -> float:
        """Compulsory traffic in bytes: arguments read once, results written once; 0 if unknown."""
        return self._counted[0] if self.listed else 0.0

    @property
    def flops(self) -> float:
        """Flops of products, convolutions and attention as they are written."""
        return self._counted[1]


Table = dict[str, Variant]


VARIANTS: Table = {}


TINY: Table = {}
"""The variants at small sizes, to see whether everything runs."""


def variant(
    name: str, dtype: torch.dtype, full: str, tiny: str, into: tuple[Table, Table] = (VARIANTS, TINY), **more: Any
) -> Callable[[Make], Make]:
    """Decorator that adds a module to two tables: at its own sizes (`full`) and at small ones (`tiny`).

    Sizes are texts such as "d=896 t=1000". `more`: further fields of `Variant`.
    """

    def read(text: str) -> dict[str, int]:
        return {k: int(v) for k, v in (part.split("=") for part in text.split())}

    def put(make: Make) -> Make:
        for table, sizes in zip(into, (full, tiny), strict=True):
            table[name] = Variant(name, make, read(sizes), dtype, **more)
        return make

    return put


class Of(nn.Module):
    """Module of a function of inputs and of random weights with the given shapes."""

    def __init__(self, call: Callable[..., Any], **shapes: Shape) -> None:
        super().__init__()
        self.call, self.names = call, tuple(shapes)
        for name, s in shapes.items():
            x = torch.ones(s) if len(s) == 1 else torch.randn(s) * s[-2] ** -0.5
            self.register_parameter(name, nn.Parameter(x))

    def forward(self, *inputs: Tensor) -> Any:
        """The function's value."""
        return self.call(*inputs, *(getattr(self, n) for n in self.names))
