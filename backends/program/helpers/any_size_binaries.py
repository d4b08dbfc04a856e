"""Compiled kernels of saved programs with free sizes: helper classes of emitted programs.

Triton compiles a function once for each alignment of its operands; sizes are arguments on which it does not specialize.
CUDA C++ kernels are compiled together, once for each least alignment (`SizedCudaKernel.stored`).

The source is copied into emitted programs: it may use `ctypes`, `torch` and the other helpers only.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any
from weakref import finalize

from ...ir.definitions import sources_of
from .cuda_driver import Driver, DriverAttribute, DriverConfig, parameter_memory, write_tensor_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class NotStored(LookupError):
    """Raised when a saved program has no compiled kernel for operands of this alignment."""


class Variants:
    """The Triton kernels that a program launched: `known` maps (name, alignment of operands) to (binary, launch facts),
    or to None for a kernel that cannot be stored. `stored`: the kernels of a saved program, which are launched without
    Triton."""

    stored: Any = None

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}
        self.loaded: dict[Any, Any] = {}  # by device, name and alignment: (function, facts)
        self.driver: Any = None

    @staticmethod
    def key(name: str, given: Sequence[Any]) -> str:
        """Key of a kernel and its operands' alignment: the name, then "+" for each operand that begins at a multiple of
        16 bytes, else "-"."""
        return name + "".join("-" if x.data_ptr() & 15 else "+" for x in given if isinstance(x, torch.Tensor))

    def note(self, name: str, given: Sequence[Any], compiled: Any, early: bool) -> None:
        """Keep the binary of the kernel `compiled`, which Triton compiled for the launch of `name` with the arguments
        `given`. `early`: whether it is launched by programmatic dependent launch."""
        key = self.key(name, given)
        if key in self.known:
            return
        facts, boxed = compiled.metadata, [x for x in given if hasattr(x, "base")]
        maps = list(getattr(facts, "tensordesc_meta", None) or ())
        scratch = any(getattr(facts, part, 0) for part in ("global_scratch_size", "profile_scratch_size"))
        plain = "cubin" in compiled.asm and not scratch and getattr(facts, "num_ctas", 1) == 1
        plain &= len(maps) == len(boxed) and not any(m["fp4_padded"] or m.get("is_im2col") for m in maps)
        plain &= all(getattr(x, "padding", "zero") == "zero" for x in boxed)
        plain &= not any(getattr(x, "round_f32_to_tf32", False) for x in boxed)
        types = {8: 10, 9: 8, 10: 9}  # types of elements that the driver numbers in another order than Triton
        found = {
            "function": facts.name, "block": 32 * facts.num_warps, "shared": facts.shared, "early": bool(early),
            "maps": [[m["swizzle"], m["elem_size"], types.get(m["elem_type"], m["elem_type"]), list(m["block_size"])] for m in maps],
        } if plain else {}  # fmt: skip
        self.known[key] = (compiled.asm["cubin"], found) if plain else None

    def maps(self, kernel: Any, given: Sequence[Any]) -> Sequence[Any]:
        """Facts for the tensor maps of the descriptors among the arguments `given` of `kernel` (`write_tensor_map`);
        empty if they are not known."""
        name = getattr(getattr(kernel, "base", kernel), "__name__", "")
        found = {**self.known, **(self.stored or {})}.get(self.key(name, given))
        facts: Sequence[Any] = found[1].get("maps", ()) if found else ()
        return facts

    def launch(self, name: str, grid: Any, *given: Any, **options: Any) -> None:
        """Launch the stored kernel `name` on the arguments `given` and Torch's current stream.

        Raises NotStored if there is none for operands of this alignment.
        """
        device = torch._C._cuda_getDevice()
        key = device, self.key(name, given)
        if key not in self.loaded:
            self.loaded[key] = self.load(key[1])
        function, facts, spans = self.loaded[key]
        _memory, base, parameters = parameter_memory(spans)
        places, maps = iter(spans), iter(facts.get("maps", ()))
        for x in given:
            if hasattr(x, "base"):
                write_tensor_map(self.driver, base + next(places)[0], x, next(maps))
            numbers = (
                [x.data_ptr()] if isinstance(x, torch.Tensor) else [*x.shape, *x.strides] if hasattr(x, "base") else [x]
            )
            for number in numbers:
                start, size = next(places)
                ctypes.memmove(base + start, number.to_bytes(size, "little", signed=True), size)
        attribute = DriverAttribute(key=6, value=1)
        shape = ((ctypes.c_uint * 3)(*n) for n in ((*grid, 1, 1)[:3], (facts["block"], 1, 1)))
        config = DriverConfig(*shape, facts["shared"], torch._C._cuda_getCurrentRawStream(device),
                              ctypes.addressof(attribute), int(facts["early"]))  # fmt: skip
        self.driver("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)

    def load(self, key: str) -> Any:
        """(function of a stored kernel on the current device, its launch facts, (offset, bytes) of its parameters)."""
        if key not in self.stored:
            raise NotStored(f"there is no compiled kernel {key}")
        binary, facts = self.stored[key]
        self.driver = self.driver or Driver()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver("cuModuleLoadData", ctypes.byref(module), binary)
        finalize(self, self.driver.library.cuModuleUnload, ctypes.c_void_p(module.value)).atexit = False
        self.driver("cuModuleGetFunction", ctypes.byref(function), module, facts["function"].encode())
        if facts["shared"] > 48 << 10:
            self.driver("cuFuncSetAttribute", function, ctypes.c_int(8), ctypes.c_int(facts["shared"]))
        spans, start, size = list[tuple[int, int]](), ctypes.c_size_t(), ctypes.c_size_t()
        ask = self.driver.library.cuFuncGetParamInfo
        while not ask(function, ctypes.c_size_t(len(spans)), ctypes.byref(start), ctypes.byref(size)):
            spans.append((start.value, size.value))
        return function, facts, spans


#: helper name -> source
HELPERS: dict[str, str] = dict(sources_of(__name__))

__all__ = ["HELPERS", "NotStored", "Variants"]
