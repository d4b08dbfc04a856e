"""Fuzz tests: random typed graphs are optimized and compared with their float64 semantics: `python -m tests.fuzz
--help`.
"""
