"""Programs on a CPU beside PyTorch and ONNX Runtime, small budgets, and what calls and imports cost."""
