"""Queries the local GPU (name, whether it is usable, free memory), and translates Torch's errors of a failed GPU into
this package's."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from .. import cache_folder, settings
from ..costdb.keys.device import GPU_KIND, gpu_machine
from ..errors import DeviceFaultError, DeviceMemoryError, DeviceUnavailableError, warned
from ..private import private_folder
from ..wording import spelled_bytes


@cache
def hardware() -> str:
    """Name and compute capability of the current GPU, such as "NVIDIA H200 sm_90"; empty without a GPU."""
    from .registry import backend

    if backend("torch_cuda").unavailable():
        return ""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} sm_{major}{minor}"


def planned_for() -> str:
    """Name and compute capability of the GPU that plans target: from the setting `gpu`, else the local one."""
    if not settings.current().gpu:
        return hardware()
    _, name, capability, *_ = f"{gpu_machine().device}::".split(":")
    return f"{name} {capability.replace('sm', 'sm_')}"


def check_hardware(wanted: str, where: str = "") -> None:
    """Raise DeviceUnavailableError unless the GPU that a program was made for is present.

    `wanted`: its name and compute capability ("NVIDIA H200 sm_90"); "" accepts any GPU. `where`: path for the message.
    """
    from .registry import backend

    why = backend("torch_cuda").unavailable()
    if why:
        raise DeviceUnavailableError(
            f"the program runs on a GPU ({wanted or 'any'}), and none can be used here: {why}", where=where,
            hint="load it where there is one, or optimize the model again for this machine",
        )  # fmt: skip
    if wanted and wanted != hardware():
        raise DeviceUnavailableError(
            f"the program was made for another GPU: {wanted}, here is {hardware()}", where=where,
            hint='optimize the model again here for the best plan; load_program(..., device="cuda") runs this one anyway',
        )  # fmt: skip


def check_free_memory(device: str, wanted: int) -> None:
    """Raise DeviceUnavailableError without a GPU, DeviceMemoryError if `wanted` bytes are not free on `device`, and
    DeviceFaultError if the GPU has failed before."""
    check_hardware("")
    import torch

    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:  # the error of an earlier kernel
        raise device_error(error, "its memory was asked for") or error from None
    # Torch's cached memory, which can be reused
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if wanted > free + idle:
        raise DeviceMemoryError(
            f"the program takes {spelled_bytes(wanted)} on {device}, {spelled_bytes(free + idle)} of {spelled_bytes(total)} are free",
            hint="free memory, use smaller dims, or optimize for the CPU",
        )


def is_gpu(device: Any) -> bool:
    """Whether a `torch.device` is an NVIDIA GPU."""
    return bool(device.type == GPU_KIND)


def wait(device: str, what: str) -> None:
    """Synchronize with a device; `what` names the operation for errors. Raises DeviceFaultError if its work failed."""
    import torch

    if not is_gpu(torch.device(device)):
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise device_error(error, what) or error from None


def device_error(error: RuntimeError, what: str) -> DeviceUnavailableError | None:
    """The error of this package to raise for a Torch error of a failed GPU during the operation `what`:
    DeviceMemoryError or DeviceFaultError; None for other errors."""
    text = str(error).strip().partition("\n")[0]
    if type(error).__name__ == "OutOfMemoryError":
        return DeviceMemoryError(f"{what}: {text}", hint="free memory, use smaller dims, or optimize for the CPU")
    if type(error).__name__ == "AcceleratorError" or "CUDA error" in text:
        return DeviceFaultError(
            f"the GPU failed while {what}: {text}",
            hint="this process cannot use the GPU any more: start another; what was saved and measured is whole",
        )
    return None


def facts() -> dict[str, str]:
    """Texts about this machine's GPUs for a bug report, by label: names, memory, CUDA version.

    Without a usable GPU the only label is "gpu", and its text says why.
    """
    from .registry import backend

    why = backend("torch_cuda").unavailable()
    if why:
        return {"gpu": f"none: {why}"}
    import torch

    found = torch.cuda.get_device_properties(0)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "gpu": ", ".join(names),
        "gpu memory": f"{found.total_memory / 2**30:.0f} GiB, {torch.cuda.mem_get_info()[0] / 2**30:.0f} GiB free",
        "gpu details": f"{hardware().rpartition(' ')[2]}, {found.multi_processor_count} multiprocessors, "
        f"{found.L2_cache_size >> 20} MiB L2",
        "cuda": f"{torch.version.cuda} in torch, cuDNN {torch.backends.cudnn.version()}",
    }


def keep_compiled() -> None:
    """Set Triton's compile cache to a folder that only this user can write to, because Triton loads code from there.

    A TRITON_CACHE_DIR that is set already is kept if it names such a folder; else a warning says why it is not used.
    """
    given = os.environ.get("TRITON_CACHE_DIR")
    if given is not None:
        why = private_folder(Path(given))
        if not why:
            return
        warned(f"TRITON_CACHE_DIR is not used: {why}")
    os.environ["TRITON_CACHE_DIR"] = str(cache_folder.private("triton"))


__all__ = [
    "check_free_memory",
    "check_hardware",
    "device_error",
    "facts",
    "hardware",
    "is_gpu",
    "keep_compiled",
    "planned_for",
    "wait",
]
