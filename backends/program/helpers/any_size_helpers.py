"""Helper functions of emitted CPU programs with free sizes: memory plans and views, made when a choice of sizes first
occurs. Their source is copied into emitted programs."""

from __future__ import annotations

SIZED_HELPERS: dict[str, str] = {
    "sized": '''def sized(at):
    """A function of arrays of any sizes. `at(*shapes)` prepares the function for a choice of sizes when it first occurs; the last 16 are kept."""
    kept = {}

    def run(*inputs):
        shapes = tuple([x.shape for x in inputs])
        found = kept.get(shapes)
        if found is None:
            while len(kept) >= 16:
                del kept[next(iter(kept))]
            found = kept[shapes] = at(*shapes)
        return found(*inputs)

    return run''',
    "room": '''def room():
    """A function that returns a workspace of at least `size` bytes: the same memory until a larger one is needed."""
    memory = workspace(0)

    def take(size):
        nonlocal memory
        if size > memory.size:
            memory = workspace(size + size // 4)
        return memory

    return take''',
    "arranged": '''def arranged(buffers, align=64):
    """(offset of each buffer in one workspace, bytes of the workspace). `buffers`: (bytes, first step, last step) each. The largest
    is placed first, each in the tightest gap between buffers that are live at a common step."""
    sizes = [-(-b // align) * align for b, _, _ in buffers]
    offsets, placed, total = [0] * len(buffers), [], 0
    for i in sorted(range(len(buffers)), key=lambda i: (-sizes[i], buffers[i][1], i)):
        _, first, last = buffers[i]
        others = sorted((offsets[j], sizes[j]) for j in placed if buffers[j][1] <= last and buffers[j][2] >= first)
        end, best, least = 0, -1, -1
        for offset, taken in others:
            gap = offset - end
            if gap >= sizes[i] and (best < 0 or gap < least):
                best, least = end, gap
            end = max(end, offset + taken)
        offsets[i] = best if best >= 0 else end
        if sizes[i]:
            placed.append(i)
        total = max(total, offsets[i] + sizes[i])
    return offsets, total''',
    "SizeError": '''class SizeError(ValueError):
    """Raised if the program is not valid at the sizes of its inputs."""''',
    "check_sizes": '''def check_sizes(given, wanted, conditions):
    """Raise SizeError if the inputs' shapes are inconsistent, or if a condition on the sizes does not hold."""
    if given != wanted:
        raise SizeError(f"the shapes {given} are inconsistent: {wanted} expected")
    for text, holds in conditions:
        if not holds:
            raise SizeError(f"the program is valid only where {text}; the inputs' shapes are {given}")''',
}  # fmt: skip

__all__ = ["SIZED_HELPERS"]
