"""Rewrite rules as tables of data, and the machinery that proves or refutes a rule."""
