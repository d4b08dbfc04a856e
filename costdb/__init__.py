"""Measured and predicted kernel costs: keys, Parquet shards, DuckDB cache, predictor."""
