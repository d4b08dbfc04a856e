"""Collects the helper functions of emitted programs that backends declare, and selects those that a program needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from ...device import HOST
from ...registry import backends, devices, host_backends, on_forget
from ...user.files import HELPERS as USER_HELPERS


@cache
def all_helpers() -> dict[str, str]:
    """Source of every helper function that emitted programs may contain, by name. Emitted code must not use these names
    for anything else."""
    found: dict[str, str] = {}
    for device in devices().values():
        found |= device.programs.helpers
    for b in backends().values():
        found |= b.helpers
    return found | USER_HELPERS


@cache
def host_helpers() -> dict[str, str]:
    """Those of `all_helpers` that programs on the CPU may contain, without importing the backends of other devices."""
    found = dict(HOST.programs.helpers)
    for b in host_backends():
        found |= b.helpers
    return found | USER_HELPERS


def known_helpers(names: Iterable[str]) -> Mapping[str, str]:
    """Source by name of helper functions, among them `names` and all that these call: the helpers of CPU programs if
    they suffice, else those of all backends."""
    host = host_helpers()
    return host if host.keys() >= {*names} else all_helpers()


on_forget += [all_helpers.cache_clear, host_helpers.cache_clear]


def helper_names(names: Iterable[str], setups: Iterable[tuple[str, str]]) -> list[str]:
    """Sorted names of the helper functions that emitted code needs: `names`, the helpers in `setups` (pairs of a
    backend's and a helper's name), and all helpers that these call."""
    found: set[str] = set()
    todo = {*names, *(name for _, name in setups)}
    known = known_helpers(todo)
    while todo:
        found |= todo
        called = {c for name in todo for c in _called(known[name])}
        todo = (called & known.keys()) - found
    return sorted(found)


@cache
def _called(source: str) -> frozenset[str]:
    own = re.sub(r'r""".*?"""', "", source, flags=re.DOTALL)  # text in another language calls no Python helper
    return frozenset(re.findall(r"(?<![\w.])([A-Za-z_]\w*)\(", own))


def helper_source(names: Iterable[str], setups: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the sources of all helper functions that emitted code needs, sorted by name. `names`: helpers; `setups`:
    further ones, as pairs of a backend's and a helper's name. Helpers that these call are included."""
    needed = helper_names(names, setups)
    known = known_helpers(needed)
    return (known[name] for name in needed)
