"""Implements the command `tensor-graphs`: its subcommands (table in docs/cli.md), their options, and the printing of
results.

In: arguments.
Out: text or one JSON document, and an exit code.
Imports: backends, backends.admission, backends.program, backends.tuning, backends.user, costdb.keys, costdb.store,
    egraph.blocks, egraph.explain, egraph.patterns, egraph.saturate, egraph.view, errors, explorer, extract.solve,
    generation, imported, kernels, options, pipeline, pipeline.context, pipeline.sizes, pipeline.sources,
    pipeline.stages, plain, progress, report, rules, rules.check, rules.derive, rules.files, rules.synthesize, settings,
    wording, writing.
"""

from __future__ import annotations

import sys

from ..errors import Interrupted
from .json_document import dumped


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit the process with the outcome's exit code; never returns.

    Ctrl-C while the commands are imported, which takes half a second, ends it without a traceback, too.
    """
    try:
        from .app import main as run
    except KeyboardInterrupt:
        if "--json" in (sys.argv[1:] if argv is None else argv):
            print(dumped({"ok": False, "error": Interrupted("interrupted").to_json()}))
        sys.stderr.write("interrupted\n")
        sys.exit(Interrupted.exit_code)
    run(argv)


__all__ = ["main"]
