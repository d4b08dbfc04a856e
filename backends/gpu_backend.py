"""Defines the base class of backends for an NVIDIA GPU, with the members that they share."""

from __future__ import annotations

from ..costdb.keys.device import MachineKey, gpu_machine
from .contract import BackendBase
from .device import GPU

__all__ = ["GpuBackend"]


class GpuBackend(BackendBase):
    """Base of backends whose kernels work on Torch tensors of the GPU and are measured in GPU worker processes."""

    device = GPU
    operands = "torch"
    measured = "gpu"

    def unavailable(self) -> str:
        """Why Torch has no usable GPU; empty if it has one."""
        import torch

        return "" if torch.cuda.is_available() else "no CUDA device"

    def machine(self) -> MachineKey:
        """Key (device, driver, toolchain) of the GPU that plans are made for, under which measurements are stored."""
        return gpu_machine()
