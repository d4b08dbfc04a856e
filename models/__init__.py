"""Model files and modules in: ONNX, torch.export, safetensors + config; a small zoo; state and weights."""
