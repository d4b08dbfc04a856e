"""Solves the extraction problem: greedy, local search, frontier DP (dynamic programming), CP-SAT, HiGHS, k best;
presolve, lower bounds.

In: a problem in arrays.
Out: a choice with a proven lower bound.
Imports: errors, extract.model, lru_map, plain, settings, wording, writing.
"""
