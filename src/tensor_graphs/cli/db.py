"""Implements the commands of `tensor-graphs db`: the store of measured kernel costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import CostStoreError, UsageError
from ..wording import counted
from ..writing.files import write_text
from .arguments import CostDb
from .console import Answer, Json

app = typer.Typer(no_args_is_help=True, help="The store of measured kernel costs.", rich_markup_mode=None)


@app.command("stats")
def db_stats(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Count rows by kernel family, and report the held-out error of predictions for unmeasured shapes."""
    found = _store(costdb).stats()
    return Answer({"stats": found.to_json()}, repr(found))


@app.command("failures")
def db_failures(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """List kernels and schedules whose measurement failed, by kind, with an example.

    Kinds are wrong results, faults, compile errors and register spills.
    """
    from ..costdb.store.failed import failed

    found = failed(_store(costdb).root)
    return Answer({"failures": found.to_json()}, repr(found))


@app.command("accuracy")
def db_accuracy(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Report the held-out accuracy of predicted kernel times and of rankings of schedules, by device."""
    from ..costdb.store.accuracy import accuracy

    store = _store(costdb)
    found = accuracy(store.root, store.snapshot)
    return Answer({"accuracy": found.to_json()}, repr(found))


@app.command("check")
def db_check(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Verify every shard's checksum and move damaged shards aside. Exits with 2 if any was damaged."""
    found = _store(costdb).check()
    wrong = CostStoreError(
        f"{len(found.bad_shards)} bad shards: {', '.join(sorted(set(found.bad_shards.values())))}", where=found.root,
        hint="they were set aside; the others are used",
    )  # fmt: skip
    return Answer({"check": found.to_json()}, repr(found), wrong if found.bad_shards else None)


@app.command("merge")
def db_merge(
    other: Annotated[Path, typer.Argument(help="folder of the other store, or of the shards that `measure` wrote")],
    costdb: CostDb = None, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Import another store's shards."""
    found = _store(costdb, new=True).merge(other)
    return Answer({"merge": found.to_json()}, repr(found))


@app.command("page")
def db_page(
    output: Annotated[Path, typer.Option("-o", "--output", help="the HTML file to write")] = Path("cost-store.html"),
    costdb: CostDb = None, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Write a page that shows the store: predicted against measured times, coverage, repeated measurements,
    failures."""
    from ..report.store_page import store_page

    write_text(output, store_page(_store(costdb)))
    return Answer({"output": str(output)}, f"written: {output}")


Team = Annotated[str | None, typer.Argument(help="folder or URL of the team's store; default: the setting `team`")]


@app.command("pull")
def db_pull(team: Team = None, as_json: Json = False) -> Answer:
    """Copy new measurements from a team's store. (Searches do so by themselves every ten minutes.)"""
    from ..costdb.store.team import pull

    found = pull(_team(team))
    return Answer({"pull": found.to_json()}, repr(found))


@app.command("push")
def db_push(team: Team = None, costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Publish this store's measurements in a team's store."""
    from ..costdb.store.team import push

    found = push(_store(costdb).root, _team(team))
    return Answer({"push": found.to_json()}, repr(found))


def _team(named: str | None) -> str:
    from .. import settings

    if found := named or settings.current().team:
        return found
    raise UsageError(
        "no team's store is named",
        hint="give a folder or URL as the argument, or set TENSOR_GRAPHS_TEAM=/shared/folder",
    )


@app.command("compact")
def db_compact(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Merge the many small shards of a store into one per device, which loads faster."""
    found = _store(costdb).compact()
    return Answer({"compact": found.to_json()}, repr(found))


@app.command("export")
def db_export(
    path: Annotated[Path, typer.Argument(help="Parquet file to write")], costdb: CostDb = None, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Write all rows as one Parquet file."""
    rows = _store(costdb).export(path)
    return Answer({"rows": rows, "output": str(path)}, f"{counted(rows, 'row')} written to {path}")


@app.command("export-starter")
def db_export_starter(
    folder: Annotated[Path, typer.Argument(help="folder for the files")], costdb: CostDb = None,
    megabytes: Annotated[float, typer.Option(help="largest size of a device's file")] = 1.0, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Write starter rows, one file per device: measured times that searches on a new machine begin with (setting
    `starter`).
    """
    from ..costdb.store.starter import export_starter

    if not 0 < megabytes < 1e6:
        raise UsageError(f"invalid --megabytes {megabytes:g}", hint="a number above 0")
    found = export_starter(_store(costdb).root, folder, int(megabytes * (1 << 20)))
    return Answer({"files": [f.to_json() for f in found]}, "\n".join(map(repr, found)))


def _store(costdb: Path | None, *, new: bool = False) -> Any:
    """The named store, or the default one. Raises CostStoreError if the named folder does not exist, unless a `new`
    store may be made."""
    from ..costdb.store.store import Store, default_root

    store = Store(costdb or default_root())
    if costdb is not None and not new and not store.root.exists():
        raise CostStoreError("there is no cost store", where=str(costdb), hint="name an existing folder")
    return store
