"""Computes the keys under which the cost store holds measurements of kernel calls."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ... import settings
from ...costdb.keys.device import MachineKey, host_key, toolchain_key
from ...costdb.keys.key import FORM, KernelKey, Plain, canonical
from ...costdb.keys.source import normalise
from ...egraph.ir.memo import memo
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Template, output_names

EMITTER = "1"  # version of program/emit/emit_cpu.py; raise it when the text emitted for a template changes


def key_of(template: Template, call: Call) -> KernelKey:
    """Cost store key of a kernel call: kernel identity and source, attributes, shapes, dtypes, strides, schedule, and
    this machine."""
    operands = [*(call.operands[o] for o in template.operands), *call.outputs]
    machine = machine_of(template.backend)
    return KernelKey(
        kernel=template.identity,
        name=_label(template),
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


def _label(template: Template) -> str:
    """Name of a kernel in the store; that of a generated one ends with the digest of its form: "triton.reduction/8c…".

    Kernels of one form differ in numbers only (sizes, epsilons): a norm of 2048 and one of 4096 columns. They are the
    nearest relatives of a kernel that was never measured (costdb/price/predict.py).
    """
    return template.name if template.space is None else f"{template.name}{FORM}{_form(template.pattern)}"


@memo(1 << 14)
def _form(pattern: str) -> str:
    return blake2b(_NUMBER.sub("#", pattern).encode(), digest_size=4).hexdigest()


_NUMBER = re.compile(r"(?<!\w)-?\d[\w.]*(?:(?<=e)[+-]\d+)?")  # no part of names: not the digits of x0 and float32


def _plain(value: Any) -> Plain:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else canonical(value)


def _source(template: Template, call: Call) -> str:
    """Hash of the executed text: call, weight preparations and helpers.

    For a generated kernel, the kernel's identity, which contains its terms and the emitter version.
    """
    if template.space is not None:
        return template.identity
    outputs = output_names(len(template.terms))
    named = replace(call, names={n: n for n in (*template.operands, "scratch", *outputs)})
    texts = [
        template.write(named),
        *(template.write_prep(o, o, named) for o in sorted(template.prep)),
        _helpers(template),
    ]
    return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


def _helpers(template: Template) -> str:
    return helper_texts(template.backend, template.setup)


@cache
def helper_texts(backend: str, setup: tuple[str, ...]) -> str:
    """Texts of the helper functions that a kernel's code needs, and of those that they call, as they enter keys."""
    from ..program.helpers.helper_functions import helper_names, known_helpers

    names = helper_names((), [(backend, name) for name in setup])
    sources = known_helpers(names)
    return "\n".join(key_text(name, sources[name]) for name in names)


@cache  # kernels with different helpers share most of what these call, and a syntax tree takes milliseconds
def key_text(name: str, source: str) -> str:
    """Text of the helper function `name` as it enters keys: normalised source, without comments, docstrings and
    spacing.

    `helper_texts.json` maps the names of older helpers to their exact text, which stored keys contain; a helper whose
    normalised source still equals that of this text enters keys with it. So editing comments never invalidates a
    measurement, and editing code always does.
    """
    recorded = _recorded_helpers().get(name)
    text = normalise(source)
    return recorded if recorded is not None and normalise(recorded) == text else text


@cache
def _recorded_helpers() -> dict[str, str]:
    return dict(json.loads(Path(__file__).with_name("helper_texts.json").read_text(encoding="utf-8")))


def machine_of(backend: str) -> MachineKey:
    """The machine (device, driver, toolchain) that a backend's kernels run on."""
    now = settings.current()
    return _machine(backend, now.threads, now.gpu)


@cache
def _machine(backend: str, threads: int, gpu: str) -> MachineKey:
    """Machine key of a backend (`machine_of`), cached by the settings `threads` and `gpu` on which it depends."""
    from ..registry import find

    found = find(backend)
    return host_key(toolchain_key(backend)) if found is None else found.machine()
