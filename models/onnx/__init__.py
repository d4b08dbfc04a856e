"""ONNX importer, one builder per operator.

In: an ONNX file.
Out: a graph.
Imports: egraph.ir, errors, models.common, models.files, plain, processes.
"""
