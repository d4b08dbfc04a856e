"""Defines devices of backends: the memory and processor that kernels use, and the module that makes programs for the
device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from ..costdb.keys.device import GPU_KIND

if TYPE_CHECKING:
    from .program.launch.device_programs import DevicePrograms

__all__ = ["GPU", "HOST", "TargetDevice"]


@dataclass(frozen=True)
class TargetDevice:
    """A device, shared by all backends whose kernels work in its memory.

    `name`: name in plans, manifests, reports and saved programs. `on_gpu`: whether it is a GPU. `any_size`: whether its
    programs may have free sizes. `programs_module`: absolute name of the module whose `PROGRAMS` makes and runs
    programs for the device; it is imported on first use, because emitters are heavier than backends.
    """

    name: str
    on_gpu: bool
    programs_module: str
    any_size: bool = True

    @cached_property
    def programs(self) -> DevicePrograms:
        """Emission, argument marshalling and memory checks of programs on this device, as a `DevicePrograms`."""
        found: DevicePrograms = import_module(self.programs_module).PROGRAMS
        return found


#: The CPU, with NumPy arrays.
HOST = TargetDevice("cpu", False, "tensor_graphs.backends.program.launch.host_programs")

#: The NVIDIA GPU, with Torch tensors.
GPU = TargetDevice(GPU_KIND, True, "tensor_graphs.backends.program.launch.gpu_programs")
