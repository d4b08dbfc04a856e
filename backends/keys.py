"""The cost store's key of a kernel call."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import Any

from .. import settings
from ..costdb.device import Machine, gpu_machine
from ..costdb.key import KernelKey, Plain, canonical, device_key, driver_key, toolchain_key
from ..egraph.dims import concrete
from ..egraph.memo import memo
from ..extract.kernel import Call, Template

EMITTER = "1"  # of emit.py: raised when it writes the same template differently


def key_of(template: Template, call: Call) -> KernelKey:
    """The key: meaning and code of the kernel, attributes, shapes, dtypes, layouts, and this machine."""
    operands = [*(call.operands[o] for o in template.operands), *call.outputs]
    machine = machine_of(template.backend)
    return KernelKey(
        kernel=template.identity,
        name=template.name,
        family=template.family,
        backend=template.backend,
        emitter=EMITTER,
        source=_source(template, call),
        constants=tuple(sorted((name, _plain(value)) for name, value in call.attrs.items())),
        shapes=tuple(concrete(o.type.shape) for o in operands),
        dtypes=tuple(o.type.dtype for o in operands),
        strides=tuple(o.strides for o in operands),
        schedule=tuple(sorted(call.schedule.items())),
        device=machine.device,
        driver=machine.driver,
        toolchain=machine.toolchain,
    )


def _plain(value: Any) -> Plain:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else canonical(value)


def _source(template: Template, call: Call) -> str:
    """Hash of the text that runs: the call, its preparations, and the helpers they name. A generated kernel's text follows
    from its body, its emitter's version (both in its identity) and its schedule."""
    if template.space is not None:
        return template.identity
    named = replace(call, names={**{o: o for o in template.operands}, "scratch": "scratch", "out": "out"})
    texts = [
        template.write(named),
        *(template.write_prep(o, o, named) for o in sorted(template.prep)),
        _helpers(template),
    ]
    return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


@memo(4096)
def _helpers(template: Template) -> str:
    from .registry import helper_source

    return "\n".join(helper_source((), [(template.backend, name) for name in template.setup]))


def machine_of(backend: str) -> Machine:
    """The machine that a backend's kernels run on."""
    if _on_gpu(backend):
        return gpu_machine()
    return _cpu(backend, settings.current().threads)


@cache
def _on_gpu(backend: str) -> bool:
    from .registry import backends

    found = backends().get(backend)
    return found is not None and found.device == "cuda"


@cache
def _cpu(backend: str, threads: int) -> Machine:
    return Machine(device_key(threads), driver_key(), toolchain_key(backend))
