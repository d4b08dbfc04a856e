"""Defaults of backends for an NVIDIA GPU."""

from __future__ import annotations

from ..costdb.keys.device import MachineKey, gpu_machine
from .contract import BackendBase
from .gpu import GPU

__all__ = ["GpuBackend"]


class GpuBackend(BackendBase):
    """Kernels on Torch tensors of the GPU, measured in the GPU's worker processes."""

    device = GPU
    operands = "torch"
    measured = "gpu"

    def unavailable(self) -> str:
        """Why Torch has no usable GPU; empty if it has one."""
        import torch

        return "" if torch.cuda.is_available() else "no CUDA device"

    def machine(self) -> MachineKey:
        """The GPU that plans target."""
        return gpu_machine()
