"""Imports model folders in the Hugging Face layout: config.json and safetensors.

In: a folder.
Out: a graph with lazy weights.
Imports: egraph.builders, egraph.composites, egraph.ir, egraph.types, errors, models.common, models.files, plain,
    writing.
"""
