"""Holds the helper functions of emitted CPU programs, and writes the emitted definition of C kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ...ir import c_math
from .any_size_helpers import SIZED_HELPERS
from .c_threads import THREADS

#: Of functions of a library whose names others see: they call one another, whatever has the same name elsewhere.
PROTECTED = '__attribute__((visibility("protected")))'

_WORD = re.compile(r"\w+")

#: Helper name -> source. Emitted source includes the helpers it uses and, transitively, those that they use.
HELPERS: dict[str, str] = {
    "strided": '''def strided(x, shape, strides):
    """A view of x's memory with another shape and strides (in elements), from x's first element on."""
    return np.lib.stride_tricks.as_strided(x, shape, [s * x.itemsize for s in strides])''',
    "workspace": '''def workspace(size, align=64):
    """A uint8 array of `size` bytes whose address is a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]''',
    "place": '''def place(memory, offset, shape, dtype, strides=None):
    """An array at a byte offset of the workspace; row-major unless strides (in elements) are given."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)''',
    "empty": '''def empty(shape, dtype, strides):
    """A new array whose axes are ordered in memory by falling strides."""
    order = sorted(range(len(shape)), key=lambda i: -strides[i])
    return np.empty([shape[i] for i in order], dtype).transpose(np.argsort(order))''',
    "Place": '''class Place:
    """A read-only array's memory, declared writable to NumPy; keeps the array alive."""

    def __init__(self, array):
        self.array, seen = array, array.__array_interface__
        self.__array_interface__ = {**seen, "data": (seen["data"][0], False)}''',
    "tensor": '''def tensor(x):
    """A Torch tensor over an array's memory; a tensor is returned unchanged."""
    if x.__class__ is not np.ndarray:
        return x
    if not x.flags.writeable:  # Torch has no read-only tensors, and warns; no kernel writes to an input
        x = np.asarray(Place(x)).view(x.dtype)
    try:
        return torch.from_numpy(x)
    except (TypeError, ValueError):  # bfloat16, or a negative stride of an axis of one element
        return tensor_of(x)''',
    "tensor_of": '''def tensor_of(x):
    """A Torch tensor over the memory of an array that torch.from_numpy refuses: bfloat16 (through its bits), negative strides."""
    if min(x.strides, default=0) < 0:
        x = np.lib.stride_tricks.as_strided(x, strides=[abs(s) for s in x.strides])
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)''',
    "array": '''def array(x):
    """A NumPy array over a tensor's memory; bfloat16 through its bits."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()''',
    "start": "start = (ctypes.c_char * 0).from_buffer  # an argument of C kernels that keeps the array alive",
    "pointer": '''def pointer(x):
    """Memory address of an array or tensor as an argument of a C kernel; keeps the array alive."""
    if x.__class__ is np.ndarray:
        try:
            return start(x)
        except (TypeError, ValueError):  # read-only, bfloat16, not contiguous
            pass
    return address(x)''',
    "table": '''def table(*given):
    """The addresses of C kernel arguments as an array of pointers, which keeps the arguments alive; None: written later."""
    places = [getattr(x, "value", None) if x is None or isinstance(x, ctypes.c_void_p) else ctypes.addressof(x) for x in given]
    found = (ctypes.c_void_p * len(given))(*places)
    found.given = given
    return found''',
    "start_of": '''def start_of(x):
    """Memory address of an array or tensor, as a number."""
    if x.__class__ is not np.ndarray:
        return x.data_ptr()
    try:
        return ctypes.addressof(start(x))
    except (TypeError, ValueError):  # read-only, bfloat16, not contiguous
        return x.__array_interface__["data"][0]''',
    "starts_of": '''def starts_of(*given):
    """Memory addresses of arrays or tensors, as numbers."""
    return [start_of(x) if x.__class__ is np.ndarray else x.data_ptr() for x in given]''',
    "argument": '''def argument(x):
    """Memory address of an array or tensor as an argument of a C kernel; the caller keeps x alive until the kernel ends."""
    return pointer(x) if x.__class__ is np.ndarray else ctypes.c_void_p(x.data_ptr())''',
    **SIZED_HELPERS,
}  # fmt: skip


def library_text(
    functions: Mapping[str, str], called: Collection[str] | None = None, threads: bool = True, own_threads: bool = False,
    before: Mapping[str, Sequence[str]] | None = None,
) -> str:  # fmt: skip
    """Python source that defines the C kernels of an emitted program: their C text, its compilation, and one function
    per kernel that is called. `functions`: kernel name -> C text. `called`: names in the program's own text (default:
    all kernels).

    Kernels that neither the program nor another kernel calls are static, so that the compiler leaves them out: those of
    a library that one kernel needs take half of the time for all.

    `threads`: whether long loops run in parallel. `own_threads`: parallel loops use the threads of `c_threads` instead
    of the OpenMP threads that Torch uses.

    `before`: functions of libraries, each with those that stand before it in its library. The text of each that is
    called is compiled by itself (`C_PARTS`) and kept for other programs; the program's own text (`C_SOURCE`) declares
    it.
    """
    called, before = functions.keys() if called is None else called, before or {}
    words = {*called, *_WORD.findall("\n".join(text for name, text in functions.items() if name not in before))}
    by_macro = [name for name in words & before.keys() if _declaration(name, functions[name]) is None]
    whole = {n for name in by_macro for n in (name, *before[name])}  # of libraries that cannot be declared
    own = {name: text for name, text in functions.items() if name not in before.keys() - whole}
    before = {name: names for name, names in before.items() if name not in whole}
    used = {*called, *_WORD.findall("\n".join(own.values()))}
    parts = {
        name: _part(name, [*before[name], name], functions) for name in functions if name in before and name in used
    }
    body = _with_static("\n\n".join(own.values()), own.keys() - set(called))
    first = (
        [THREADS]
        if threads and own_threads and any("#pragma omp parallel" in t for t in (body, *parts.values()))
        else []
    )
    if first:
        body = re.sub(r"^(?=void \w+\()", f"{PROTECTED} ", body, flags=re.MULTILINE)
    declared = [str(_declaration(name, functions[name])) for name in parts]
    source = "\n".join([c_math.HEAD, *first, *(f"{text}\n" for text in c_math.needed(body)), *declared, body])
    made = "\n".join(f'{name} = c_function(kernels, "{name}")' for name in functions if name in called)
    given = "" if threads else ", threads=False"
    texts = "".join(f'r"""{text}\n""", ' for text in parts.values())
    return (
        (f"C_PARTS = ({texts.rstrip()})  # functions of libraries\n" if parts else "")
        + f'C_SOURCE = r"""{source}\n"""\n# machine code for this processor, of saved programs\n'
        f'C_BINARY = globals().get("C_BINARY") or c_beside(globals().get("__file__"))\n'
        f"kernels = c_kept(C_BINARY{given}) or c_library(C_SOURCE{given}{', parts=C_PARTS' if parts else ''})\n{made}"
    )


def _part(name: str, names: Sequence[str], functions: Mapping[str, str]) -> str:
    """C text of the function `name` with what it needs of those before it in its library, `names`: the others are
    static. It does not depend on the program, which is why it can be compiled once for all of them."""
    body = "\n\n".join(functions[n] for n in names)
    for other in names:
        kind = PROTECTED if other == name else "static"
        body = re.sub(rf"^(?=void {other}\()", f"{kind} ", body, flags=re.MULTILINE)
    return "\n".join([c_math.HEAD, *(f"{text}\n" for text in c_math.needed(body)), body])


def _declaration(name: str, text: str) -> str | None:
    """Declaration of a function that a C text defines; None if it does so by a macro."""
    found = re.search(rf"^void {name}\([^{{;]*\)", text, flags=re.MULTILINE)
    return None if found is None else f"{found[0]};\n"


def _with_static(body: str, uncalled: Collection[str]) -> str:
    """C text in which those of the functions `uncalled` are static that are named once, where they are defined."""
    named = Counter(re.findall(r"\w+", body))
    for name in sorted(uncalled):
        if named[name] == 1:
            body = re.sub(rf"^(?=void {name}\()", "static ", body, flags=re.MULTILINE)
    return body
