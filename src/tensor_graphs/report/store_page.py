"""Writes the cost store as one HTML page: predictions against measurements, coverage, repeated measurements,
failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from ..costdb.price.predict import HeldOut
from ..costdb.reports.reports import StoreStats
from ..costdb.store.accuracy import Accuracy
from ..costdb.store.failed import FailedReport, failed
from ..costdb.store.snapshot import Snapshot
from ..costdb.store.starter import shipped_accuracy
from ..costdb.store.store import Store
from . import charts
from .page import SWITCH, Markup, printable, table
from .shell import WEB, asset, page

MOST_POINTS = 3000  # of a plot
MOST_KERNELS = 24  # kernels with repeated measurements that are drawn
MOST_ROWS = 60


@dataclass(frozen=True)
class Repeated:
    """A kernel call measured in several runs: kernel name, backend, operand shapes as text, the median of each run in
    µs (`us`), oldest first, and its time (`times`), in µs since 1970."""

    name: str
    backend: str
    shapes: str
    times: tuple[int, ...]
    us: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Largest median latency of the kernel in a run divided by its smallest, over all runs that measured it."""
        return max(self.us) / min(self.us)


def store_page(store: Store) -> str:
    """HTML page with charts of the rows in a cost store."""
    stats, pairs, repeats, failures = (
        store.stats(),
        store.predictor().held_out_pairs(),
        repeated(store.snapshot),
        failed(store.root),
    )
    sections = [
        ("Predicted against measured", _predictions(pairs)),
        ("Predictions of the rows shipped with the package", _shipped(shipped_accuracy())),
        ("Coverage", _coverage(store.snapshot)),
        ("Kernels measured more than once", _repeats(repeats)),
        ("Failures", _failures(failures)),
    ]
    body = "".join(
        f"<details open><summary>{escape(title)}</summary>{text}</details>" for title, text in sections if text
    )
    head = f"<header><h1>Cost store</h1>{SWITCH}</header>{_tiles(stats, pairs)}"
    return page(
        "Cost store", style=asset(WEB, "report.css"), body=printable(f'<main class="report">{head}{body}</main>')
    )


def repeated(snapshot: Snapshot) -> list[Repeated]:
    """Kernel calls that were measured in several runs, with the median of each run; those whose runs disagree most come
    first."""
    names = ("digest", "regime", "run", "time_us", "median_us", "name", "backend", "shapes")
    found: dict[tuple[str, str], dict[str, tuple[int, float]]] = {}
    about: dict[str, tuple[str, str, str]] = {}
    for digest, regime, run, when, us, *labels in zip(*(snapshot.column("timing", n) for n in names)):
        found.setdefault((digest, regime), {})[run] = (int(when), float(us))
        about[digest] = (str(labels[0]), str(labels[1]), str(labels[2]))
    several = []
    for (digest, _), runs in found.items():
        if len(runs) > 1:
            times, values = zip(*sorted(runs.values()))
            several.append(Repeated(*about[digest], times, values))
    return sorted(several, key=lambda r: (-r.spread, r.name, r.shapes))


# ---------------------------------------------------------------- sections
def _tiles(stats: StoreStats, pairs: Sequence[HeldOut]) -> str:
    tiles = [
        (
            "kernels in shapes and schedules",
            f"{stats.keys:,}",
            f"{len(stats.devices)} device{'s' * (len(stats.devices) != 1)}",
        ),
        ("rows", f"{sum(stats.rows.values()):,}", f"{stats.shards} shards"),
    ]
    if pairs:
        errors = _errors(pairs)
        tiles.append(("median error of predictions", f"{100 * median(errors):.0f} %", f"{len(pairs):,} held out"))
    return '<div class="tiles">' + "".join(
        f"<div><span>{escape(a)}</span><b>{escape(b)}</b><span>{escape(c)}</span></div>" for a, b, c in tiles
    ) + "</div>"  # fmt: skip


def _errors(pairs: Sequence[HeldOut]) -> list[float]:
    return [abs(p.predicted_us / p.measured_us - 1) for p in pairs]


def _predictions(pairs: Sequence[HeldOut]) -> str:
    if not pairs:
        return "<p>Too few measurements to hold any out.</p>"
    note = (
        "<p>Each point is a kernel in one shape and schedule: its measured time, and what would be predicted without it. "
        "Points on the diagonal are exact; the dashed lines are a factor of 2.</p>"
    )
    groups: dict[tuple[str, str, str], list[HeldOut]] = {}
    for p in pairs:
        groups.setdefault((p.device, p.backend, p.family), []).append(p)
    rows = []
    for (device, backend, family), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        errors = sorted(_errors(members))
        rows.append(
            (family, backend, device[:48], str(len(members)), f"{100 * median(errors):.0f} %",
             f"{100 * sum(errors) / len(errors):.0f} %", f"{100 * errors[min(len(errors) - 1, int(0.9 * len(errors)))]:.0f} %")
        )  # fmt: skip
    heads = ("family", "backend", "device", "held out", "median error", "mean error", "90th percentile")
    return note + scatter(pairs) + table(heads, rows[:MOST_ROWS], numeric=(3, 4, 5, 6))


def _shipped(found: Sequence[Accuracy]) -> str:
    if not found:
        return ""
    note = (
        "<p>Errors and ranks of predicted times, with kernels, calls (a kernel at its shapes) or schedules held out in five parts, "
        "and of the roofline alone. τ is Kendall's rank correlation; regret: how much slower the fastest of the five schedules "
        "predicted to be the fastest is than the fastest. Bars: mean error by backend and family, with calls held out.</p>"
    )

    def number(value: float, form: str) -> str:
        return "" if math.isnan(value) else format(value, form)

    rows = [
        (a.device[:48], a.held_out, f"{a.rows:,}", number(a.mape, ".1%"), number(a.median, ".1%"), number(a.tau, ".2f"),
         number(a.tau_schedules, ".2f"), number(a.regret, ".1%")) for a in found
    ]  # fmt: skip
    heads = ("device", "held out", "rows", "mean error", "median error", "τ", "τ within a call", "regret")
    return note + table(heads, rows, numeric=(2, 3, 4, 5, 6, 7)) + _families(found)


def _families(found: Sequence[Accuracy]) -> str:
    families = [(a.device, f) for a in found if a.held_out == "calls" for f in a.families]
    most = max((f.mape for _, f in families), default=0.0)
    rows = [
        (device[:48], f.backend, f.family, f"{f.rows:,}", f"{100 * f.mape:.1f} %", f"{100 * f.median:.1f} %",
         Markup(f'<div class="meter"><b style="width:{100 * f.mape / most:.1f}%"></b></div>')) for device, f in families
    ]  # fmt: skip
    return table(("device", "backend", "family", "rows", "mean error", "median error", ""), rows, numeric=(3, 4, 5))


def scatter(pairs: Sequence[HeldOut]) -> str:
    """HTML of a chart of predicted over measured time in logarithmic axes, coloured by backend."""
    shown = (
        pairs if len(pairs) <= MOST_POINTS else [pairs[int(i * len(pairs) / MOST_POINTS)] for i in range(MOST_POINTS)]
    )
    logs = [math.log10(v) for p in shown for v in (p.measured_us, p.predicted_us) if v > 0]
    low, high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
    left, top, size = 90.0, 10.0, 420.0

    def at(value: float) -> float:
        return size * (math.log10(value) - low) / (high - low)

    body = []
    for power in range(low, high + 1):
        x, y = left + at(10.0**power), top + size - at(10.0**power)
        body += [charts.line(x, top, x, top + size, "grid"), charts.line(left, y, left + size, y, "grid")]
        body.append(charts.text(x, top + size + 16, charts.us(10.0**power), anchor="middle"))
        body.append(charts.text(left - 6, y + 4, charts.us(10.0**power), anchor="end"))
    body.append(charts.line(left, top + size, left + size, top, "axis"))
    off = at(2 * 10.0**low)
    for dx, dy in ((off, 0.0), (0.0, off)):
        body.append(
            f'<polyline class="low" points="{left + dx:.1f},{top + size - dy:.1f} {left + size - dy:.1f},{top + dx:.1f}"/>'
        )
    names = [name for name, _ in Counter(p.backend for p in shown).most_common()]
    for p in shown:
        if p.measured_us > 0 and p.predicted_us > 0:
            color = f"s{min(names.index(p.backend), charts.SERIES - 1)}"
            title = escape(f"{p.name}: measured {charts.us(p.measured_us)}, predicted {charts.us(p.predicted_us)}")
            body.append(
                f'<circle cx="{left + at(p.measured_us):.1f}" cy="{top + size - at(p.predicted_us):.1f}" r="3" '
                f'class="{color}" fill-opacity="0.55"><title>{title}</title></circle>'
            )
    body.append(charts.text(left + size, top + size + 34, "measured", anchor="end"))
    body.append(charts.text(left, top + size + 34, "upwards: predicted"))
    legend = "".join(
        f'<span class="chip"><i class="dot s{min(i, charts.SERIES - 1)}"></i>{escape(name)}</span>'
        for i, name in enumerate(names[: charts.SERIES])
    )
    return charts.figure(top + size + 42, "".join(body), "predicted against measured times") + f"<p>{legend}</p>"


def _coverage(snapshot: Snapshot) -> str:
    keys: dict[tuple[str, str, str], set[str]] = {}
    shapes: dict[tuple[str, str, str], set[str]] = {}
    names = ("device", "backend", "family", "digest", "shapes")
    for device, backend, family, digest, shape in zip(*(snapshot.column("timing", n) for n in names)):
        place = (str(device), str(backend), str(family))
        keys.setdefault(place, set()).add(digest)
        shapes.setdefault(place, set()).add(shape)
    if not keys:
        return "<p>Nothing was measured yet.</p>"
    ranked = sorted(keys, key=lambda place: (-len(keys[place]), place))
    most = len(keys[ranked[0]])
    rows = []
    for device, backend, family in ranked[:MOST_ROWS]:
        count = len(keys[device, backend, family])
        bar = Markup(f'<div class="meter"><b style="width:{100 * count / most:.1f}%"></b></div>')
        rows.append((device[:48], backend, family, f"{count:,}", f"{len(shapes[device, backend, family]):,}", bar))
    return table(("device", "backend", "family", "measured", "shapes", ""), rows, numeric=(3, 4))


def _repeats(found: Sequence[Repeated]) -> str:
    if not found:
        return "<p>No kernel has measurements of several runs.</p>"
    factors = sorted(r.spread for r in found)
    note = (
        f"<p>{len(found):,} kernel calls have several runs; their slowest median is {median(factors):.2f} times the fastest at the "
        f"median, {factors[min(len(factors) - 1, int(0.9 * len(factors)))]:.2f} times at the 90th percentile. Those that disagree most:</p>"
    )
    rows = [
        (r.name, r.backend, r.shapes[:60], str(len(r.us)), charts.us(min(r.us)), charts.us(max(r.us)), f"{r.spread:.2f}×",
         Markup(history(r)))
        for r in found[:MOST_KERNELS]
    ]  # fmt: skip
    return note + table(
        ("kernel", "backend", "shapes", "runs", "fastest", "slowest", "ratio", "over time"), rows, numeric=(3, 4, 5, 6)
    )


def history(kernel: Repeated) -> str:
    """A small chart of a kernel's medians, equally spaced, oldest first, from 0 up."""
    width, height, most = 150.0, 30.0, max(kernel.us)
    step = width / max(1, len(kernel.us) - 1)
    points = " ".join(f"{i * step:.1f},{height - (height - 3) * us / most:.1f}" for i, us in enumerate(kernel.us))
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="150" height="30" role="img" aria-label="times over runs"><polyline class="now" points="{points}"/></svg>'


def _failures(found: FailedReport) -> str:
    if not found.kinds:
        return ""
    rows = [
        (w.name, w.backend, w.status, w.stage, f"{w.keys} of {w.of}", w.message[:160]) for w in found.kinds[:MOST_ROWS]
    ]
    return (
        f"<p>{found.keys:,} of {found.of:,} tried kernels, in one shape and schedule each, failed; a failed kernel is not chosen.</p>"
        + table(("kernel", "backend", "what", "stage", "tried", "example"), rows)
    )


__all__ = ["Repeated", "history", "repeated", "scatter", "store_page"]
