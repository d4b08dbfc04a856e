"""Writes the report as one HTML page of tables and SVG charts: no script, no network. All texts are escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from ..wording import counted, rewriting_end, spelled_bytes
from . import charts
from .charts import us
from .drawings import drawings
from .shell import WEB, asset, page

if TYPE_CHECKING:
    from .records import StepReport
    from .report import Report

MOST_ROWS = 60  # kernels listed one by one; the others are summed

MIN_PLOTTED = 1e-9  # µs, flops and bytes from which a kernel is in the roofline plot

SWITCH = '<span class="switch">' + " ".join(
    f'<label><input type="radio" name="theme" id="theme-{name}"{" checked" if name == "auto" else ""}>{name}</label>'
    for name in ("auto", "light", "dark")
) + "</span>"  # fmt: skip


def report_page(report: Report, more: Mapping[str, str]) -> str:
    """HTML page of a report. `more`: HTML of further sections by title."""
    sections: list[tuple[str, str, bool]] = [
        ("Summary", table((), [row for row in report.rows() if row[0] != "bucket"]), True),
        ("Sizes", _sizes(report), True),
        ("Where the time goes", _kernels(report), True),
        ("Against the limit of the machine", _limits(report), True),
        ("Model and program", drawings(report), True),
        ("Memory", _memory(report), True),
        ("Error", _errors(report), True),
        ("The search: what it found when, and what more of it would bring", _search(report), True),
        *((title, text, False) for title, text in more.items()),
        ("Rules and blocks", _rules(report), False),
    ]
    body = "".join(
        f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{text}</details>"
        for title, text, is_open in sections if text
    )  # fmt: skip
    head = f"<header><h1>{escape(printable(report.model) or 'program')}</h1>{SWITCH}</header>{_tiles(report)}"
    return page(
        printable(report.model),
        style=asset(WEB, "report.css"),
        body=printable(f'<main class="report">{head}{body}</main>'),
    )


def printable(text: str) -> str:
    """Text without lone surrogates and control characters."""
    return "".join(c if c >= " " or c == "\n" else " " for c in text.encode("utf-8", "replace").decode())


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """HTML table with the column titles `head` and `rows` of texts; a `Markup` cell is taken as it is. `numeric`:
    columns aligned to the right."""

    def cell(i: int, value: str, tag: str) -> str:
        return f"<{tag}{' class=num' if i in numeric else ''}>{value if isinstance(value, Markup) else escape(value)}</{tag}>"

    top = "<tr>" + "".join(cell(i, h, "th") for i, h in enumerate(head)) + "</tr>" if head else ""
    lines = "".join("<tr>" + "".join(cell(i, c, "td") for i, c in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table>{top}{lines}</table></div>'


class Markup(str):
    """Text that is HTML already."""


# ---------------------------------------------------------------- sections
def _tiles(report: Report) -> str:
    verdict = report.verification
    tiles = [("estimated", us(report.cost_us), counted(sum(report.priced.values()), "kernel"))]
    if report.latency_before_us and report.latency_after_us:
        tiles.insert(0, ("time of a call", us(report.latency_after_us), f"{us(report.latency_before_us)} before"))
        tiles.insert(
            0, ("speed-up", f"{report.latency_before_us / report.latency_after_us:.2f}×", f"runs: {report.runs}")
        )
    if verdict:
        text = "passed" if verdict.get("passed") else "FAILED"
        tiles.append(("error", f"{verdict.get('error_after', math.nan):.1e}", f"{verdict.get('allowed', math.nan):.1e} allowed, {text}"))  # fmt: skip
    optimal = "proven optimal" if report.optimal else f"at most {100 * report.gap:.1f} % above the optimum"
    tiles.append(("this e-graph", f"{report.e_nodes:,}", f"e-nodes; {optimal}"))
    if report.workspace:
        tiles.append(("workspace", spelled_bytes(report.workspace), f"{len(report.buffers)} buffers"))
    inner = "".join(f"<div><span class=soft>{escape(a)}</span><b>{escape(b)}</b><span class=soft>{escape(c)}</span></div>" for a, b, c in tiles)  # fmt: skip
    return f'<div class="tiles">{inner}</div>'


def _sizes(report: Report) -> str:
    """Table of the buckets of sizes; the fastest form of each timed size is bold. "" for a program without buckets."""
    if not report.buckets:
        return ""

    def times(of: dict[str, float]) -> Markup:
        text = (f"{escape(form)} {us(t)}" for form, t in of.items())
        return Markup(", ".join(f"<b>{s}</b>" if t == min(of.values()) else s for s, t in zip(text, of.values())))

    rows = [
        (f"{b.least}–{b.most}", b.runs, str(b.searched or "–"), Markup("<br>".join(f"at {n}: {times(of)}" for n, of in b.us.items())))
        for b in report.buckets
    ]  # fmt: skip
    head = (f"sizes of {report.buckets[0].dimension}", "what runs", "own plan searched at", "times of a call")
    note = "<p class=soft>One plan runs at all sizes; a bucket gets a plan of its own, or your function, where that is measured to be faster by more than noise.</p>"
    return table(head, rows) + note


def _kernels(report: Report) -> str:
    if not report.steps:
        rows = [(k.name, str(k.count), us(k.us), k.source) for k in report.kernels]
        return table(("kernel", "calls", "time", "price"), rows, (1, 2)) if rows else ""
    total = math.fsum(s.us for s in report.steps) or 1.0
    parts = [
        (s.name, s.us, f"{i + 1}. {s.name}: {us(s.us)}, {100 * s.us / total:.1f} %") for i, s in enumerate(report.steps)
    ]
    ranked = equal_calls(report.steps)
    longest = max(len(same) * same[0][1].us for same in ranked) or 1.0
    calls: list[Sequence[str]] = [
        (_numbers([i for i, _ in same]), Markup(f"{escape(s.name)}<div class='soft'>{escape(s.computes[:110])}</div>{_meter(s, longest, len(same))}"),
         us(len(same) * s.us), "" if len(same) == 1 else f"{len(same)} × {us(s.us)}", f"{100 * len(same) * s.us / total:.1f} %", _share_text(s), s.source)
        for same in ranked[:MOST_ROWS] for s in [same[0][1]]
    ]  # fmt: skip
    if rest := [s for same in ranked[MOST_ROWS:] for _, s in same]:
        spent = math.fsum(s.us for s in rest)
        calls.append(("", f"{len(rest)} further calls", us(spent), "", f"{100 * spent / total:.1f} %", "", ""))
    head = ("step", "kernel", "time", "calls", "share", "of limit", "price")
    return charts.strip(parts) + table(head, calls, (0, 2, 3, 4, 5))


def equal_calls(steps: Sequence[StepReport]) -> list[list[tuple[int, StepReport]]]:
    """Groups of equal kernel calls, each call with its step number (from 1), by falling total time. Repeated layers
    make equal calls.
    """
    found: dict[tuple[object, ...], list[tuple[int, StepReport]]] = {}
    for i, s in enumerate(steps, 1):
        key = (s.name, s.computes, s.type, s.source, round(s.us, 3), s.flops, s.bytes)
        found.setdefault(key, []).append((i, s))
    return sorted(found.values(), key=lambda same: -len(same) * same[0][1].us)


def _numbers(steps: Sequence[int]) -> str:
    """Step numbers as text: the first two, and how many more."""
    shown = ", ".join(map(str, steps[:2]))
    return shown if len(steps) <= 2 else f"{shown}, …"


def _meter(step: StepReport, longest: float, count: int) -> str:
    limit = min(step.limit_us or 0.0, step.us) * count
    return (
        f'<div class="meter" title="shaded: time; solid: limit"><i style="width:{100 * count * step.us / longest:.1f}%"></i>'
        f'<b style="width:{100 * limit / longest:.1f}%"></b></div>'
    )


def share_of_limit(step: StepReport) -> float | None:
    """Roofline lower bound of a kernel's time divided by its time, at most 1; None if either is unknown or the time is
    the bound itself."""
    if not step.limit_us or not step.us or step.source == "bound":
        return None
    return min(1.0, step.limit_us / step.us)


def _share_text(step: StepReport) -> str:
    share = share_of_limit(step)
    return "–" if share is None else f"{100 * share:.0f} %"


def _limits(report: Report) -> str:
    known = [(s, share) for s in report.steps if (share := share_of_limit(s)) is not None]
    if not known:
        return "<p class=soft>No kernel has both a time and a known limit.</p>" if report.steps else ""
    lost = sorted(
        ((len(same) * (s.us - (s.limit_us or 0.0)), len(same), s.name) for same in equal_calls([s for s, _ in known]) for s in [same[0][1]]), reverse=True
    )[:8]  # fmt: skip
    lost = [row for row in lost if row[0] > 0]
    total = math.fsum(s.us for s, _ in known)
    whole = math.fsum(s.us * share for s, share in known) / total if total else 1.0
    text = f"<p>The kernels reach {100 * whole:.0f} % of the limits of launch, traffic and arithmetic; {us(total * (1 - whole))} are lost.</p>"
    bars = (
        charts.bars([(f"{n} × {name}" if n > 1 else name, gap, f"{us(gap)} above limit") for gap, n, name in lost])
        if lost
        else ""
    )
    return text + _roofline([s for s, _ in known]) + (f"<h3>Lost against the limit</h3>{bars}" if bars else "")


def _roofline(steps: Sequence[StepReport]) -> str:
    """Roofline plot. The machine's rates are those that the kernels' limits imply: the best traffic and arithmetic."""
    groups = [(len(same), s, s.flops, s.bytes, s.limit_us) for same in equal_calls(steps) for s in [same[0][1]]]
    found = [(n, s, f, b, t) for n, s, f, b, t in groups if f and b and t and min(f, b, t, s.us) > MIN_PLOTTED]
    if not found:
        return ""
    total = math.fsum(n * s.us for n, s, *_ in found)
    points = [
        charts.Point(f / b, f / s.us, n * s.us / total, f"{s.name}: {n} × {us(s.us)}, {100 * t / s.us:.0f} % of its limit")
        for n, s, f, b, t in found
    ]  # fmt: skip
    rates = [(f / t, b / t) for _, _, f, b, t in found]
    note = "<p class=soft>Points: kernels, larger with more time. Lines: the fastest traffic and arithmetic among the kernels' own limits.</p>"
    return charts.roofline(points, max(b for _, b in rates), max(f for f, _ in rates)) + note


def _memory(report: Report) -> str:
    if not report.buffers or not report.workspace:
        return ""
    steps = max(b.last for b in report.buffers) + 1
    changes = sorted(x for b in report.buffers for x in ((b.first, b.size), (b.last + 1, -b.size)))
    most = max(accumulate(size for _, size in changes))
    rows = [(b.value, b.offset, b.size, b.first, b.last) for b in sorted(report.buffers, key=lambda b: -b.size)]
    text = f"{spelled_bytes(report.workspace)} of workspace; at most {spelled_bytes(most)} of values live at one step."
    return f"<p>{text}</p>{charts.memory_map(rows, report.workspace, steps)}"


def _errors(report: Report) -> str:
    verdict, parts = report.verification, []
    if not verdict:
        parts.append("<p>Not verified.</p>")
    else:
        passed = "passed" if verdict.get("passed") else "FAILED"
        parts.append(
            f"<p>Relative error against float64 on {counted(int(verdict.get('seeds', 0)), 'input')}: {verdict.get('error_after', math.nan):.2e}; "
            f"as written {verdict.get('error_before', math.nan):.2e}; allowed {verdict.get('allowed', math.nan):.2e}: {passed}.</p>"
        )
    known = sorted(((s.error, i, s) for i, s in enumerate(report.steps) if s.error), reverse=True)
    if known:
        parts.append("<p class=soft>Measured error of single kernels, on random operands of their own:</p>")
        parts.append(charts.bars([(s.name, e, f"{e:.2e}, step {i + 1}") for e, i, s in known[:10]]))
    return "".join(parts)


def advice(report: Report) -> list[str]:
    """Sentences about omitted parts of the search, and about changes that a larger budget could bring."""
    ended, end = (
        ("The search was stopped", "A request to stop") if report.interrupted else ("The time was up", "The budget")
    )
    found = [f"{ended}: {', '.join(report.omitted)} were cut short."] if report.omitted else []
    unmeasured = sum(n for source, n in report.priced.items() if source != "measured")
    if report.search_stopped == "budget":
        found.append(f"{end} ended the search before the best plan's kernels were all measured.")
    elif report.search_stopped == "prices only":
        found.append("Nothing was measured in this search: prices are stored or predicted.")
    if report.runs == "as written":
        found.append(
            "The graph runs as it is written: it was faster than what the search found. The times of its kernels are those known or predicted for each alone."
        )
    elif unmeasured:
        found.append(
            f"{unmeasured} kernels of the plan were not measured; measured, they may take up to {us(report.optimism_us)} less, or more."
        )
    if not report.optimal and report.gap > 0:
        found.append(
            f"A better choice among these kernels could save at most {us(report.cost_us - report.lower_bound_us)} ({100 * report.gap:.1f} %)."
        )
    limits = [rewriting_end(b.stopped).removeprefix("stopped at ") for b in report.blocks if b.stopped != "saturated"]
    if limits:
        found.append(
            f"Rewriting of {len(limits)} of {len(report.blocks)} blocks stopped at a limit ({', '.join(sorted(set(limits)))}): more effort would try more forms."
        )
    return found or ["Nothing was cut: the e-graph is saturated, its best plan is measured and proven optimal."]


def _search(report: Report) -> str:
    parts = ["<ul>", *(f"<li>{escape(a)}</li>" for a in advice(report)), "</ul>"]
    if len(report.curve) > 1:
        parts.append(
            "<h3>Cost of the best plan over time</h3><p class=soft>Solid: at current prices; dashed: with unmeasured kernels at the low end of their predictions.</p>"
        )
        parts.append(charts.curve(report.curve, report.cost_us))
    seconds = sorted(((n, s) for n, s in report.seconds.items() if s >= 0.005), key=lambda r: -r[1])
    if seconds:
        parts.append(
            f"<h3>Where {sum(report.seconds.values()):.1f} s went</h3>{charts.bars([(n, s, f'{s:.2f} s') for n, s in seconds[:14]])}"
        )
    if report.timeline:
        parts.append(f"<h3>Timeline of the processes, in seconds since the call</h3>{charts.gantt(report.timeline)}")
    return "".join(parts)


def _rules(report: Report) -> str:
    blocks = table(
        ("block", "times", "nodes", "e-nodes", "classes", "stopped", "seconds"),
        [(str(i), str(b.instances), str(b.nodes), str(b.e_nodes), str(b.classes), f"{b.stopped} ({b.iterations})", f"{b.seconds:.2f}")
         for i, b in enumerate(report.blocks)], (0, 1, 2, 3, 4, 6),
    )  # fmt: skip
    fired = sorted(((n, m, s) for n, (m, s) in report.rules.items() if m), key=lambda r: -r[2])[:40]
    rules = table(("rule", "matches", "ms"), [(n, str(m), f"{1000 * s:.1f}") for n, m, s in fired], (1, 2))
    return f"<h3>Blocks</h3>{blocks}<h3>Rules by time</h3>{rules}"


__all__ = ["advice", "report_page", "share_of_limit"]
