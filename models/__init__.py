"""Imports models (ONNX, torch.export, Hugging Face folders, functions), and makes models with random weights.

In: a file, module or function.
Out: a typed graph with lazy weights.
Imports: egraph.ir, errors, models.common, models.files, models.huggingface, models.onnx, models.torch_export, writing.
"""
