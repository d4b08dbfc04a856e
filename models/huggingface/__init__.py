"""Imports model folders in the Hugging Face layout: config.json and safetensors.

In: a folder.
Out: a graph with lazy weights.
Imports: egraph.ir, errors, models.common, models.files, writing.
"""
