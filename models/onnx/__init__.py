"""ONNX importer: one function per operator builds the graph of a node.

In: an ONNX file.
Out: a graph.
Imports: egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.ops, egraph.types, errors,
    models.common, models.files, plain, processes, wording.
"""
