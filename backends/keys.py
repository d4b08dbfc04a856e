"""The cost store's key of a kernel call."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import Any

from .. import settings
from ..costdb.key import KernelKey, Plain, canonical, device_key, driver_key, toolchain_key
from ..egraph.dims import concrete
from ..extract.kernel import Call, Template

EMITTER = "1"  # of emit.py: raised when it writes the same template differently


def key_of(template: Template, call: Call) -> KernelKey:
    """The key: meaning and code of the kernel, attributes, shapes, dtypes, layouts, and this machine."""
    operands = [*(call.operands[o] for o in template.operands), call.output]
    device, driver, toolchain = _machine(template.backend, settings.current().threads)
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
        device=device,
        driver=driver,
        toolchain=toolchain,
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


@cache
def _helpers(template: Template) -> str:
    from .registry import helper_source

    return "\n".join(helper_source((), [(template.backend, name) for name in template.setup]))


@cache
def _machine(backend: str, threads: int) -> tuple[str, str, str]:
    return device_key(threads), driver_key(), toolchain_key(backend)
