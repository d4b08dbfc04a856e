"""ONNX importer: one function per operator builds the graph of a node.

In: an ONNX file.
Out: a graph.
Imports: egraph.ir, errors, models.common, models.files, plain, processes.
"""
