"""Extraction: public e-graphs, proofs of optimality, and whether summed kernel times rank plans."""
