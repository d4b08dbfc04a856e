"""What is known of the GPU here: its name, whether it can be used, and whether something fits into its memory."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from .. import settings
from ..costdb.device import gpu_machine
from ..errors import DeviceFaultError, DeviceMemoryError, DeviceUnavailableError, warned
from ..private import private_folder


@cache
def hardware() -> str:
    """The current GPU's name and compute capability, such as "NVIDIA H200 sm_90"; empty where there is none."""
    from .registry import backend

    if backend("torch_cuda").unavailable():
        return ""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} sm_{major}{minor}"


def planned_for() -> str:
    """The same of the GPU that plans are made for: the one that the setting `gpu` describes, else the one here."""
    if not settings.current().gpu:
        return hardware()
    _, name, capability, *_ = f"{gpu_machine().device}::".split(":")
    return f"{name} {capability.replace('sm', 'sm_')}"


def check_hardware(wanted: str, where: str = "") -> None:
    """DeviceUnavailableError unless the GPU that a program was made for is here ("": any GPU will do)."""
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


def check_room(device: str, wanted: int) -> None:
    """DeviceUnavailableError without a GPU; DeviceMemoryError if `wanted` bytes are not free on it, DeviceFaultError if it has
    failed before."""
    check_hardware("")
    import torch

    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:  # what an earlier kernel did
        raise named(error, "its memory was asked for") or error from None
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # Torch's own, to be used again
    if wanted > free + idle:
        raise DeviceMemoryError(
            f"the program takes {wanted} bytes on {device}, {free + idle} of {total} are free",
            hint="free memory, use smaller dims, or optimize for the CPU",
        )


def wait(device: str, what: str) -> None:
    """Wait until a device has done all its work. DeviceFaultError if that failed; `what` was being done."""
    import torch

    if torch.device(device).type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise named(error, what) or error from None


def named(error: RuntimeError, what: str) -> DeviceUnavailableError | None:
    """Torch's error as one of ours, if the GPU is what failed."""
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
    """Lines for a bug report."""
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
    """Have Triton keep what it compiles in a folder that nobody else can write: it loads code from there. TRITON_CACHE_DIR is respected
    if it names such a folder."""
    given = os.environ.get("TRITON_CACHE_DIR")
    if given is not None:
        why = private_folder(Path(given))
        if not why:
            return
        warned(f"TRITON_CACHE_DIR is not used: {why}")
    os.environ["TRITON_CACHE_DIR"] = str(settings.private("triton"))


__all__ = ["check_hardware", "check_room", "facts", "hardware", "keep_compiled", "named", "planned_for", "wait"]
