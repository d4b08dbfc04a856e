"""tensor_graphs: finds the fastest form of a tensor program by e-graph rewriting and measured kernel costs."""

__version__ = "0.1.0"
