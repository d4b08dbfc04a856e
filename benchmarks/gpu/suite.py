"""Benchmarks of a table of programs on a GPU (`variants.py`, `whole_models.py`, `odd_sizes.py`).

Each program runs in a process of its own, until the time is up; each result is written at once. A run begins with the
programs measured longest ago.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.case import Case, Record, share_the_gpu
from benchmarks.gpu.workloads import recorded, started, waited
from benchmarks.models.variant import Variant

HERE = Path(__file__).parents[1]
LAST_S = 25.0  # least seconds left with which another program is begun


@dataclass
class Suite:
    """A benchmark of a table of programs: how one is measured, which fields of its record are stored, how they are
    shown.

    `full` and `tiny`: the programs at their own and at small sizes. `name`: that of its result files;
    `module`: that of its module in benchmarks/gpu. `shortened`: a record without the fields that are not stored.
    """

    name: str
    module: str
    full: Mapping[str, Variant]
    tiny: Mapping[str, Variant]
    case: type[Case]
    measured: Callable[[Any], None]
    shortened: Callable[[Record], Record]
    line: Callable[[Record], str]
    render: Callable[[dict[str, Record]], str]
    budget: float = 20.0
    seconds: float = 90.0  # time limit of one program
    records: Path = field(init=False)
    table: Path = field(init=False)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.records, self.table = HERE / f"results/raw/{self.name}.json", HERE / f"results/{self.name}.md"

    def child(self, options: argparse.Namespace) -> None:
        """Measure one program in this process."""
        faulthandler.enable()  # says where a crash was
        faulthandler.dump_traceback_later(4 * options.budget + 20)  # says where what is stopped hung
        share_the_gpu()
        full = self.full[options.child]
        work = self.tiny[options.child] if options.small else full
        case = self.case(
            full, work, options.work / f"{full.name}.json", options.device, options.budget, options.store / full.name
        )
        case.record |= {
            "together": options.together,
            "dtype": str(full.dtype).removeprefix("torch."),
            "budget": options.budget,
        }
        case.write()
        self.measured(case)
        case.record["finished"] = True
        case.write()

    def run_one(self, name: str, options: argparse.Namespace, seconds: float) -> Record:
        """Measure a program in a process of its own; returns its record, with the reason if the process failed."""
        target = options.work / f"{name}.json"
        target.unlink(missing_ok=True)
        arguments = ["--child", name, "--budget", str(options.budget), "--work", str(options.work), "--store", str(options.store),
                     "--together", str(options.together)]  # fmt: skip
        return recorded(name, target, waited(started(arguments, options, f"benchmarks.gpu.{self.module}"), seconds))

    def stored(self) -> dict[str, Record]:
        """The stored records by name."""
        return json.loads(self.records.read_text()) if self.records.exists() else {}

    def keep(self, found: Sequence[Record]) -> None:
        """Store new records, and write the table."""
        with self._writing:
            records = {**self.stored(), **{r["name"]: r for r in found}}
            self.records.parent.mkdir(parents=True, exist_ok=True)
            self.records.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
            self.table.write_text(self.render(records))

    def run(self, options: argparse.Namespace) -> int:
        """Measure programs, those measured longest ago first, until the time is up; returns how many failed.

        Raises SystemExit for an unknown name.
        """
        options.work.mkdir(parents=True, exist_ok=True)
        if unknown := set(options.only or ()) - set(self.full):
            raise SystemExit(f"nothing is called {sorted(unknown)}; there are {', '.join(self.full)}")
        first, count = map(int, options.slice.split("/"))
        dates = {n: r.get("date", "") for n, r in self.stored().items()}
        names = sorted((options.only or list(self.full))[first::count], key=lambda n: dates.get(n, ""))
        until = time.monotonic() + options.seconds

        def one(name: str) -> bool:
            left = until - time.monotonic()
            if left < LAST_S:
                return False
            print(f"== {name} ({left:.0f} s left)", file=sys.stderr, flush=True)
            found = self.run_one(name, options, min(options.case_seconds, left))
            self.keep([self.shortened(found)])
            print(self.line(found), flush=True)
            return "failed" in found or any("failed" in v for v in found["variants"].values())

        with ThreadPoolExecutor(options.together) as threads:
            return sum(threads.map(one, names))

    def merge(self, paths: Sequence[Path]) -> None:
        """Store newer records from result files of other machines."""
        old = self.stored()
        newer = [
            r
            for p in paths
            for r in json.loads(p.read_text()).values()
            if r.get("date", "") > old.get(r["name"], {}).get("date", "")
        ]
        self.keep(sorted(newer, key=lambda r: r["date"]))

    def main(self, doc: str) -> int:
        """Parse the command line, measure, write the table; returns how many failed.

        `doc`: the description for `--help`.
        """
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--only", nargs="+", metavar="NAME")
        parser.add_argument("--slice", default="0/1", metavar="I/N", help="every N-th from the I-th on")
        parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
        parser.add_argument("--case-seconds", type=float, default=self.seconds, help="of one")
        parser.add_argument("--budget", type=float, default=self.budget, help="seconds of each optimization")
        parser.add_argument("--together", type=int, default=2, help="how many side by side (timing stays alone)")
        parser.add_argument("--store", type=Path, help="folder of cost stores, one each (default: new ones)")
        parser.add_argument(
            "--work", type=Path, default=HERE.parent / "out/bench" / self.name, help="folder for caches and parts"
        )
        parser.add_argument(
            "--results", type=Path, help="folder for records and the table (default: benchmarks/results)"
        )
        parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: does everything run?")
        parser.add_argument("--small", action="store_true", help="small sizes")
        parser.add_argument("--render", action="store_true", help="only write the table again")
        parser.add_argument(
            "--merge", nargs="+", type=Path, metavar="JSON", help="only take newer records from these files"
        )
        parser.add_argument("--child", help=argparse.SUPPRESS)
        options = parser.parse_args()
        options.store = options.store or options.work / f"stores-{int(time.time())}"
        if options.child:
            self.child(options)
            return 0
        if options.results:
            self.records, self.table = options.results / f"{self.name}.json", options.results / f"{self.name}.md"
        elif options.small or options.device == "cpu":  # not for the table
            self.records, self.table = options.work / "small.json", options.work / "small.md"
        if options.merge or options.render:
            self.merge(options.merge or ())
            return 0
        return self.run(options)
