"""Importers of models: ONNX files, torch.export, Hugging Face folders, traced functions; a zoo of small models.

In: a file, module or function.
Out: a typed graph with lazy weights.
Imports: egraph.ir, errors, models.common, models.files, models.huggingface, models.onnx, models.torch_export,
    writing.
"""
