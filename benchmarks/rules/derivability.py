"""How many rules of a file follow from ours: `python -m benchmarks.rules.derivability [FILE ...] >
docs/derivability.md`.

Files whose name ends in `pairs.txt` or `multi.txt` are read two lines a rule. The files beside this script always come
along; of Tensat's repository, converted.txt and converted_multi.txt are worth giving.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tensor_graphs.egraph.saturate.worker import Pool
from tensor_graphs.rules.derive.prove import LIMITS
from tensor_graphs.rules.files.derive_file import counts, derive_all
from tensor_graphs.rules.files.rule_file import read

HERE = Path(__file__).parent
OURS = ("pairs.txt", "single.txt", "strides.txt")
TEXT = """# Derivability

Which substitution rules of other projects follow from our rules. A rule counts as derived if, at several sizes (and ranks,
parameters and groups, where the rule leaves them open), both its sides, put into one e-graph, end up in one e-class within
{seconds:g} s, {iterations} rounds and {nodes:,} e-nodes; for a two-line rule, both equalities. None of these rules is copied into the rule base: the
laws that prove them are in `rules/*.py`, those that serve only proofs in `rules/tables/normal_form.py` and `rules/tables/strides.py`. The method is in
`rules/derive/prove.py`. Constant subterms are evaluated first (`rules/smt/spelling.py`). For randomly generated rules see
`python -m benchmarks.rules.fuzz 1500 --forms --derive` ([table](rule-checking.md)). Sums and products of the constants in a claim
are computed and added to the e-graph as equalities, and scalar factors of constants are pulled out of linear ops first. A rule with
parameter variables must in addition not be refuted at other values of these.

    tensor-graphs rules derive FILE [--pairs] [--json]        one file, rule by rule
    python -m benchmarks.rules.derivability FILE ... > docs/derivability.md        this page

Seconds are wall-clock per rule, {cores} rules in parallel on {cores} cores, for all sizes together, including the declaration of rules to
egglog whenever the ops differ from those of the previous rule.

| file | rules | derived | seconds, median | seconds, largest |
|---|---|---|---|---|
{rows}
`converted.txt` and `converted_multi.txt` are the rule files of [Tensat](https://github.com/uwplse/tensat);
`single.txt` and `pairs.txt` are ours (`benchmarks/rules`): equations over transposition, scalar factors, pooling,
enlarged and constant kernels, and merges of two operators. `strides.txt` has equations about strided identities, kernels with zero
borders beyond the padding, transposed images and sums of constants.

`python -m benchmarks.rules.equations --count 150 --derive` finds equations between small terms by equal values, as TASO does, and
reports how many of those that `rules check` does not refute are derived. With `--count 60 --seed 3 --sample 8000` these were 109 of
124 before `rules/tables/strides.py`, and are 127 of 127 with it; with `--world images --world windows --count 50 --seed 21 --sample 6000` they
are 85 of 86.

Not expected to be derived: equalities that hold for other than algebraic reasons (such as that a mean of positive numbers is
positive), beyond the cases that `rules/tables/algebra.py` lists; convolutions of constant images; means over a window in two steps, row
by row and column by column; and rules that are right only at special sizes.
"""


def row(path: Path, pool: Pool) -> str:
    """A file's line of the table; rules that were not derived are printed to stderr."""
    pairs = path.stem.endswith(("pairs", "multi"))
    found = list(derive_all(read(path.read_text(encoding="utf-8"), pairs=pairs), pool))
    for one in found:
        if not one.derived:
            print(f"{path.name}: {one.text}: {one.detail}", file=sys.stderr)
    n = counts(found)
    return f"| {path.name} | {n['rules']} | {n['derived']} | {n['seconds_median']:.2f} | {n['seconds_max']:.2f} |\n"


def main(files: list[str]) -> None:
    """Print the page."""
    cores = os.cpu_count() or 1
    pool = Pool(cores)
    try:
        rows = "".join(row(path, pool) for path in (*map(Path, files), *(HERE / name for name in OURS)))
    finally:
        pool.close()
    limits = {name: getattr(LIMITS, name) for name in ("seconds", "iterations", "nodes")}
    print(TEXT.format(rows=rows, cores=cores, **limits), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
