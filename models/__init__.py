"""Model importers: ONNX, torch.export, safetensors with config.json, traced NumPy functions; a model zoo."""
