"""Addresses of a call's tensors among the parameters of library kernels: helpers of emitted GPU programs.

A CUDA graph contains the addresses that library kernels got when it was recorded. Which of their parameters are
addresses of a call's tensors is not known, but can be seen: the launches are recorded a second time with these tensors
elsewhere, and a word of a parameter that has moved with a tensor is an address in it. Later calls write their own
tensors' addresses there, as in the parameters of generated kernels.

The source is copied into emitted programs: it may use `ctypes`, and the helpers of cuda_driver.py and gpu_launches.py.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...ir.definitions import sources_of
from .cuda_driver import DriverConfig, parameter_memory
from .gpu_launches import DirectLaunch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


class Spans:
    """The memory of some of a call's tensors. `tensors`: index of a tensor -> (address of its first byte, bytes)."""

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self.tensors = tensors
        self.low = min((start for start, _ in tensors.values()), default=0)
        self.high = max((start + size for start, size in tensors.values()), default=-1)

    def at(self, address: int) -> list[int]:
        """Indices of the tensors in which an address is, or at whose end."""
        if not self.low <= address <= self.high:  # most words of parameters are numbers
            return []
        return [i for i, (start, size) in self.tensors.items() if start <= address <= start + size]


class LibraryLaunch(DirectLaunch):
    """One launch of a library kernel in a recorded CUDA graph. `slots`: the words of its parameters that are addresses
    in tensors of a call, as those of a `DirectLaunch`. `unknown`: indices of tensors near which there are other
    addresses."""

    def __init__(self, driver: Any, node: int) -> None:
        self.unknown = set[int]()
        try:
            self.start = self.read(driver, node)
            self.how.parameters, self.how.extra = ctypes.addressof(self.parameters), None
        except LookupError:
            self.start = self.read_buffer()
        self.slots, self.boxes, self.config, self.touches = [], [], DriverConfig(), True

    def read_buffer(self) -> int:
        """Copy the parameters of a launch that has them as one buffer (cuBLAS's kernels for Hopper GPUs); returns the
        copy's address. If there is no buffer, nothing of the launch is set: results tell whether it uses a tensor that
        moves."""
        found: dict[int, int] = {}
        self.layout, at = [], 0
        options = ctypes.cast(self.how.extra or 0, ctypes.POINTER(ctypes.c_void_p))
        while self.how.extra and options[at]:  # pairs of a key and a value: 1 a buffer, 2 the address of its size
            found[options[at]], at = options[at + 1], at + 2
        if not found.get(1) or not found.get(2):
            return 0
        self.size = ctypes.c_size_t(ctypes.c_size_t.from_address(found[2]).value)
        self.layout = [(0, self.size.value)]
        self.memory, base, self.parameters = parameter_memory(self.layout)
        ctypes.memmove(base, found[1], self.size.value)
        self.options = (ctypes.c_void_p * 5)(1, base, 2, ctypes.addressof(self.size), 0)
        self.how.parameters, self.how.extra = None, ctypes.addressof(self.options)
        return int(base)

    def words(self) -> Iterator[Any]:
        """The aligned words of 8 bytes within the parameters."""
        for start, size in self.layout:
            for at in range(-(-start // 8) * 8, start + size - 7, 8):
                yield ctypes.c_uint64.from_address(self.start + at)

    def compare(self, other: LibraryLaunch, before: Spans, after: Mapping[int, Any]) -> None:
        """Set `slots` and `unknown`, given the same launch in a second recording. `before`, `after`: number of a tensor
        -> (address, bytes) in the first and in the second recording. Raises LookupError for another launch."""
        if self.function.value != other.function.value or self.layout != other.layout:
            raise LookupError("a library launches other kernels on other memory")
        if list(self.how.grid) != list(other.how.grid) or self.how.shared != other.how.shared:
            raise LookupError("a library launches its kernels differently on other memory")
        for word, moved in zip(self.words(), other.words()):
            near = before.at(word.value)
            held = [i for i in near if moved.value - word.value == after[i][0] - before.tensors[i][0]]
            if len(held) == 1:
                self.slots.append((word, held[0], word.value - before.tensors[held[0]][0]))
            else:  # an address that moved with no tensor or with several, or what is left of one in a gap
                self.unknown.update(near)


def nodes_of(driver: Any, graph: Any) -> list[tuple[int, int]]:
    """(node, its type in the driver's numbers) of a recorded CUDA graph, in the order of the driver."""
    count, found = ctypes.c_size_t(), []
    driver("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    for node in nodes:
        kind = ctypes.c_int()
        driver("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        found.append((int(node or 0), kind.value))
    return found


def numbers_copied(driver: Any, node: int, kind: int, tensors: Spans) -> set[int]:
    """Numbers of the tensors that a node copies (type 1) or fills (type 2). Raises
    LookupError for nodes of other types that may use memory."""
    names = {1: "cuGraphMemcpyNodeGetParams", 2: "cuGraphMemsetNodeGetParams"}
    if kind == 5:  # waits only
        return set()
    if kind not in names:
        raise LookupError("a library adds other nodes than kernels and copies to a graph")
    words = (ctypes.c_uint64 * 32)()  # more than either structure has
    driver(names[kind], ctypes.c_void_p(node), ctypes.byref(words))
    return {i for word in words for i in tensors.at(word)}


def library_launches(
    driver: Any, graphs: Sequence[Any], own: Collection[int], before: Mapping[int, Any], after: Mapping[int, Any]
) -> tuple[list[Any], set[int]]:
    """(launches of library kernels, numbers of the tensors whose addresses are among their parameters), of two
    recordings of the same launches on other memory.

    `own`: nodes of generated kernels in the first one. `before`, `after`: number of a tensor -> (address, bytes) in the
    first and in the second recording. Tensors that other nodes copy or fill, and those with unknown addresses near
    them, are left out. Raises LookupError if the recordings are not alike.
    """
    pairs = [nodes_of(driver, graph) for graph in graphs]
    if [kind for _, kind in pairs[0]] != [kind for _, kind in pairs[1]]:
        raise LookupError("a library makes other launches on other memory")
    launches: list[LibraryLaunch] = []
    spans, stay = Spans(before), set[int]()
    for (node, kind), (other, _) in zip(*pairs):
        if kind:
            stay |= numbers_copied(driver, node, kind, spans)
        elif node not in own:
            launches.append(LibraryLaunch(driver, node))
            launches[-1].compare(LibraryLaunch(driver, other), spans, after)
            stay |= launches[-1].unknown
    found = {i for one in launches for _, i, _ in one.slots} - stay
    for one in launches:
        one.slots = [slot for slot in one.slots if slot[1] in found]
    return [one for one in launches if one.slots], found


#: helper name -> source
HELPERS: dict[str, str] = dict(sources_of(__name__))
