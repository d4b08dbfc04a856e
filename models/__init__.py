"""Model files and modules in: ONNX, torch.export, Hugging Face folders, functions; a small model zoo.

In: a file, module or function.
Out: a typed graph with lazy weights.
Imports: egraph.ir, errors, models.common, models.files, models.huggingface, models.onnx, models.torch_export,
    writing.
"""
