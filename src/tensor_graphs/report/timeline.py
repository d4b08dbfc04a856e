"""Records the timeline of an optimization and its processes: rows of time spans in seconds since the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

from ..extract.model.clock import Clock

MAX_SPANS = 24  # maximum spans per row; the shortest gaps are merged
WIDTH = 80  # characters per drawn line

Rows = dict[str, list[list[float]]]  # activity -> [begin, end] pairs


def timeline(start: float, clocks: Iterable[tuple[str, Clock]]) -> Rows:
    """Spans of all activities of named clocks, keyed "CLOCK: ACTIVITY", in seconds since `start` (time.monotonic)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for who, clock in clocks:
        for what, spans in clock.spans.items():
            found.setdefault(f"{who}: {what}", []).extend(spans)
    return {name: [[round(a - start, 2), round(b - start, 2)] for a, b in _joined(s)] for name, s in found.items()}


def is_span(span: Sequence[float]) -> bool:
    """Whether `span` has two numbers, begin and end in seconds since the call, in order and within 30 years of it."""
    return len(span) == 2 and -1e9 < span[0] <= span[1] < 1e9


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(begin, end) of each span, sorted. Overlapping spans are merged, and, while there are more than MAX_SPANS, those
    with the shortest gaps between them."""
    kept: list[tuple[float, float]] = []
    for a, b in sorted(spans):
        if kept and a <= kept[-1][1]:
            kept[-1] = kept[-1][0], max(b, kept[-1][1])
        else:
            kept.append((a, b))
    if len(kept) <= MAX_SPANS:
        return kept
    longest = set(sorted(range(1, len(kept)), key=lambda i: kept[i - 1][1] - kept[i][0])[: MAX_SPANS - 1])
    firsts = [i for i in range(len(kept)) if i == 0 or i in longest]
    return [(kept[i][0], kept[j - 1][1]) for i, j in pairwise([*firsts, len(kept)])]


def drawn(rows: Mapping[str, Sequence[Sequence[float]]], width: int = WIDTH) -> str:
    """Text of a timeline: one line per row with name, begin, total seconds, and a bar.

    `rows`: activity -> (begin, end) pairs in seconds since the call. `width`: characters of a bar.
    """
    rows = {name: spans for name, spans in rows.items() if spans}
    if not rows:
        return ""
    whole, names = max(end for spans in rows.values() for _, end in spans), max(map(len, rows))
    lines = [f"{'':{names}}  begins  seconds  0 to {whole:.1f} s"]
    for name, spans in rows.items():
        cells = [" "] * width
        for a, b in spans:
            first = min(max(int(a / whole * width), 0), width - 1) if whole > 0 else 0
            last = max(first, min(round(b / whole * width) - 1, width - 1)) if whole > 0 else 0
            cells[first : last + 1] = "#" * (last + 1 - first)
        lines.append(f"{name:{names}}  {spans[0][0]:6.2f}  {sum(b - a for a, b in spans):7.2f}  |{''.join(cells)}|")
    return "\n".join(lines)


def html(rows: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """HTML table of a timeline, with bars; `rows`: activity -> (begin, end) pairs in seconds since the call."""
    whole = max((end for spans in rows.values() for _, end in spans), default=0.0) or 1.0
    lines = []
    for name, spans in rows.items():
        bars = "".join(
            f'<span title="{a:.2f} to {b:.2f} s" style="position:absolute;left:{100 * a / whole:.2f}%;'
            f'width:{max(100 * (b - a) / whole, 0.2):.2f}%;height:.7em;background:#4a7"></span>'
            for a, b in spans
        )
        seconds = sum(b - a for a, b in spans)
        lines.append(
            f'<tr><td>{escape(name)}</td><td>{seconds:.2f} s</td><td style="position:relative;width:60em">{bars}</td></tr>'
        )
    return f"<table>{''.join(lines)}</table>"


__all__ = ["Rows", "drawn", "html", "is_span", "timeline"]
