"""Command line of the fuzzers that compare values seed by seed, some as programs, and the table that they print."""

from __future__ import annotations

import argparse
from collections import Counter


def seed_arguments(doc: str | None, cases: str, otherwise: str) -> argparse.ArgumentParser:
    """A parser of --seconds, --seed, --programs, --limit, --once and --show. `doc`: the description; `cases`: what a
    seed makes; `otherwise`: what is done with those that are not optimized."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--programs", type=float, default=0.3, help=f"share of {cases} that are optimized, not only {otherwise}"
    )
    parser.add_argument("--limit", type=int, default=60, help="seconds of one seed")
    parser.add_argument("--once", action="store_true", help="this seed alone, as program if --programs is 1")
    parser.add_argument("--show", default="", help="a kind of refusals whose text is printed, too")
    return parser


def is_program(seed: int, share: float) -> bool:
    """Whether the case of a seed is optimized: a fixed `share` of all seeds."""
    return (seed * 7919 % 1000) / 1000 < share


def print_counts(counts: Counter[str]) -> None:
    """Print a line for each kind of result, the most frequent first."""
    for name, count in counts.most_common():
        print(f"{count:>7} {name}")


__all__ = ["is_program", "print_counts", "seed_arguments"]
