"""Draws the charts of the report as SVG texts: colours come from the page's style sheet, so that they follow light and
dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from ..wording import spelled_bytes

WIDTH = 960  # of all charts, in user units; pages scale them
SERIES = 8  # colours s0 to s7 of the style sheet


class Point(NamedTuple):
    """One kernel in the roofline plot: flops per byte, flops per µs, share of the time, label."""

    intensity: float
    rate: float
    share: float
    label: str


def figure(height: float, body: str, label: str) -> str:
    """HTML of an SVG figure of a height in pixels with the elements `body`; `label` is its text for screen readers."""
    return f'<div class="chart"><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{body}</svg></div>'


def text(x: float, y: float, words: str, kind: str = "soft", anchor: str = "start") -> str:
    """SVG text element at (x, y): `words` are escaped; `kind` is its CSS class, `anchor` its alignment."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(x: float, y: float, w: float, h: float, kind: str, title: str = "") -> str:
    """SVG rectangle of a CSS class `kind` with the tooltip `title`; `x` and `y` are its upper left corner, in
    pixels."""
    shape = f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(w, 0.5):.2f}" height="{max(h, 0.5):.2f}" class="{kind}">'
    return f"{shape}{f'<title>{escape(title)}</title>' if title else ''}</rect>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    """SVG line from (x1, y1) to (x2, y2) of a CSS class `kind`."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def us(value: float) -> str:
    """A time in µs as text."""
    return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} µs"


def strip(parts: Sequence[tuple[str, float, str]]) -> str:
    """HTML of a chart of parts side by side, width by value: (name, value, tooltip). Equal names have equal colours,
    the largest first.
    """
    total = math.fsum(v for _, v, _ in parts) or 1.0
    ranked: dict[str, float] = {}
    for name, value, _ in parts:
        ranked[name] = ranked.get(name, 0.0) + value
    names = sorted(ranked, key=lambda n: -ranked[n])
    color = {n: f"s{min(i, SERIES - 1)}" for i, n in enumerate(names)}
    shapes, x = [], 0.0
    for name, value, title in parts:
        width = WIDTH * value / total
        shapes.append(rect(x, 0, width - (0.6 if width > 3 else 0), 34, color[name], title))
        if width > 60:
            shapes.append(text(x + 5, 21, name[: int(width / 7.5)], "on"))
        x += width
    legend = "".join(
        f'<span class="chip"><i class="dot {color[n]}"></i>{escape(n)} {100 * ranked[n] / total:.0f} %</span>'
        for n in names[:SERIES]
    )
    return figure(36, "".join(shapes), "time of the kernels in order") + f"<p>{legend}</p>"


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """HTML of a chart of horizontal bars, one per row (label, value, text to the right of the bar)."""
    most = max((v for _, v, _ in rows), default=0.0) or 1.0
    body = "".join(
        text(0, 22 * i + 15, label[:26], "ink") + rect(190, 22 * i + 4, 620 * value / most, 13, "s0") + text(820, 22 * i + 15, shown)
        for i, (label, value, shown) in enumerate(rows)
    )  # fmt: skip
    return figure(22 * len(rows) + 4, body, "bars")


def roofline(points: Sequence[Point], bytes_per_us: float, flops_per_us: float) -> str:
    """HTML of a roofline plot: attained flops over arithmetic intensity, in logarithmic axes, below the limits
    `bytes_per_us` of traffic and `flops_per_us` of arithmetic."""
    left, top, width, height = 92.0, 12.0, 840.0, 300.0
    ridge = flops_per_us / bytes_per_us
    xs = [p.intensity for p in points] + [ridge]
    ys = [p.rate for p in points] + [flops_per_us]
    x0, x1 = math.floor(math.log10(min(xs) / 2)), math.ceil(math.log10(max(xs) * 2))
    y0, y1 = math.floor(math.log10(min(ys) / 2)), math.ceil(math.log10(max(ys) * 1.5))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + width * (math.log10(x) - x0) / (x1 - x0),
            top + height * (1 - (math.log10(y) - y0) / (y1 - y0)),
        )

    body = [line(*place(10**x, 10**y0), *place(10**x, 10**y1), "grid") + text(place(10**x, 1)[0], top + height + 16, _power(x), anchor="middle")
            for x in range(x0, x1 + 1)]  # fmt: skip
    body += [line(*place(10**x0, 10**y), *place(10**x1, 10**y), "grid") + text(left - 6, place(1, 10**y)[1] + 4, f"{_si(10.0 ** (y + 6))}flop/s", anchor="end")
             for y in range(y0, y1 + 1)]  # fmt: skip
    low = max(10**x0, 10**y0 / bytes_per_us)
    body += [line(*place(low, low * bytes_per_us), *place(ridge, flops_per_us), "roof"), line(*place(ridge, flops_per_us), *place(10**x1, flops_per_us), "roof")]  # fmt: skip
    named: list[tuple[float, float]] = []
    for p in sorted(points, key=lambda p: -p.share):
        x, y = place(p.intensity, p.rate)
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 + 18 * math.sqrt(p.share):.1f}" class="point"><title>{escape(p.label)}</title></circle>')  # fmt: skip
        if p.share > 0.05 and all(abs(y - b) > 15 or abs(x - a) > 180 for a, b in named):
            named.append((x, y))
            gap, name = 8 + 18 * math.sqrt(p.share), p.label.partition(":")[0][:30]
            last = x + gap + 7 * len(name) > left + width  # no room to the right
            body.append(text(x - gap if last else x + gap, y + 4, name, "ink", "end" if last else "start"))
    body.append(text(left + width, top + height + 34, "flops per byte of compulsory traffic", anchor="end"))
    return figure(top + height + 42, "".join(body), "roofline plot")


def gantt(rows: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """HTML of a chart of the time spans [begin, end] in seconds of each activity, one row each."""
    end = max((b for spans in rows.values() for _, b in spans), default=0.0) or 1.0
    left, scale = 250.0, (WIDTH - 330.0) / end
    body = []
    for i, (name, spans) in enumerate(rows.items()):
        body.append(text(0, 20 * i + 14, name[:36], "ink") + line(left, 20 * i + 19, WIDTH, 20 * i + 19, "grid"))
        body += [
            rect(left + scale * a, 20 * i + 4, scale * (b - a), 11, "s0", f"{name}: {a:.2f} to {b:.2f} s")
            for a, b in spans
        ]
        body.append(text(WIDTH, 20 * i + 14, f"{math.fsum(b - a for a, b in spans):.2f} s", anchor="end"))
    return figure(20 * len(rows) + 4, "".join(body), f"timeline of {end:.1f} s")


def _power(x: int) -> str:
    return f"{10.0**x:g}"


def _si(value: float) -> str:
    for limit, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g} {letter}"
    return f"{value:g} "


def memory_map(buffers: Sequence[tuple[str, int, int, int, int]], size: int, steps: int) -> str:
    """HTML of a chart of buffers (label, offset, bytes, first step, last step) as rectangles: steps to the right,
    offsets upwards. `size`, `steps`: bytes of the workspace and number of steps.
    """
    left, height = 80.0, 240.0
    across, up = (WIDTH - left) / max(steps, 1), height / max(size, 1)
    body = [line(left, 0, left, height), line(left, height, WIDTH, height)]
    for i, (label, offset, nbytes, first, last) in enumerate(buffers):
        last = min(last, steps - 1)
        title = f"{label}: {nbytes:,} bytes at {offset:,}, steps {first} to {last}"
        x, w, h = left + across * first, across * (last - first + 1), up * nbytes
        body.append(rect(x, height - up * (offset + nbytes), w - 1, h - 0.8, f"s{i % SERIES}", title))
        if w > 46 and h > 14:
            body.append(text(x + 4, height - up * (offset + nbytes / 2) + 4, label[: int(w / 8)], "on"))
    body += [text(left - 6, 10, spelled_bytes(size), anchor="end"), text(left - 6, height, "0", anchor="end"),
             text(left, height + 16, "first step"), text(WIDTH, height + 16, "last step", anchor="end")]  # fmt: skip
    return figure(height + 22, "".join(body), "memory map of the workspace")


def curve(points: Sequence[Sequence[float]], final: float) -> str:
    """HTML of a chart of the best plan's cost over time: (seconds, µs at optimistic prices, µs at current prices).

    `final`: µs of the plan that was returned.
    """
    left, height = 80.0, 200.0
    end = max(p[0] for p in points) * 1.02 or 1.0
    most = max(max(p[1:]) for p in points) * 1.08 or 1.0

    def spot(t: float, v: float) -> tuple[float, float]:
        return left + (WIDTH - left - 10) * t / end, height * (1 - v / most)

    body = [line(left, 0, left, height), line(left, height, WIDTH, height)]
    for column, kind in ((1, "low"), (2, "now")):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (spot(p[0], p[column]) for p in points))
        body.append(f'<polyline points="{path}" class="{kind}"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{kind} dot"><title>{escape(f"{p[0]:.1f} s: {us(p[column])}")}</title></circle>'
                 for p in points for x, y in [spot(p[0], p[column])]]  # fmt: skip
    body += [text(left - 6, 10, us(most), anchor="end"), text(left - 6, height, "0", anchor="end"), text(WIDTH, height + 16, f"{end:.3g} s", anchor="end"),
             text(left, height + 16, "time of the search")]  # fmt: skip
    return figure(height + 22, "".join(body), f"cost of the best plan over time, at last {us(final)}")


def layered(
    count: int, reads: Sequence[Sequence[int]], labels: Mapping[int, tuple[str, str, str]], width: float
) -> str:
    """HTML of a drawing of a graph of `count` nodes, each numbered after its operands. Operands are drawn above users.

    `reads`: operands of each node. `labels`: (title, detail, CSS class) per node. `width`: of the drawing, in pixels.
    """
    level = [0] * count
    for i in range(count):
        level[i] = max((level[r] + 1 for r in reads[i]), default=0)
    for i in reversed(range(count)):  # inputs as low as possible
        users = [j for j in range(i + 1, count) if i in reads[j]]
        if not reads[i] and users:
            level[i] = min(level[j] for j in users) - 1
    rows: dict[int, list[int]] = {}
    for i in range(count):
        rows.setdefault(level[i], []).append(i)
    box, tall, x = 230.0, 34.0, dict[int, float]()
    for number in sorted(rows):
        row = rows[number]
        row.sort(key=lambda i: math.fsum(x.get(r, width / 2) for r in reads[i]) / max(len(reads[i]), 1))
        gap = width / len(row)
        x.update({i: gap * (n + 0.5) for n, i in enumerate(row)})
    small = min(1.0, min(width / len(row) / (box + 8) for row in rows.values())) if rows else 1.0
    y = {i: 4 + level[i] * (tall + 24) for i in range(count)}
    body = [f'<path d="M{x[r]:.0f} {y[r] + tall:.0f} C{x[r]:.0f} {y[r] + tall + 14:.0f} {x[i]:.0f} {y[i] - 14:.0f} {x[i]:.0f} {y[i]:.0f}" class="flow"/>'
            for i in range(count) for r in reads[i]]  # fmt: skip
    for i in range(count):
        title, detail, kind = labels[i]
        half = box * small / 2
        body.append(rect(x[i] - half, y[i], 2 * half, tall, kind, f"{title} {detail}"))
        if small > 0.3:
            body.append(text(x[i] - half + 6, y[i] + 14, title[: int(32 * small)], "ink") + text(x[i] - half + 6, y[i] + 27, detail[: int(38 * small)], "soft tiny"))  # fmt: skip
    high = max(y.values(), default=0) + tall + 6
    return f'<svg viewBox="0 0 {width:.0f} {high:.0f}" role="img" aria-label="graph">{"".join(body)}</svg>'
