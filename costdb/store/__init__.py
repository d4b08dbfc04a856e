"""Stores measurements durably: Parquet shards, DuckDB cache, in-process snapshot, calibration.

In: rows.
Out: measurements by digest.
Imports: cache_folder, costdb.keys, costdb.price, costdb.reports, errors, lru_map, plain, private, processes,
settings, writing.
"""
