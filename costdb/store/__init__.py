"""Stores measurements durably: Parquet shards, DuckDB cache, in-process snapshot, calibration.

In: rows.
Out: measurements by digest.
Imports: cache_folder, costdb.keys, costdb.price, costdb.reports, errors, plain, private, processes, settings, writing.
"""
