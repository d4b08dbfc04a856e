"""Benchmarks, in folders by subject; `python -m benchmarks.run` measures the figures of results/cpu.md.

cpu, gpu           programs beside PyTorch, `torch.compile`, ONNX Runtime and XLA
decoding           decode steps of language models, their kernels and quantized weights
torch_compile      `tg.compile` and training steps
saturation, extraction, search, rules    the parts of a search
pages              reports and e-graphs in a browser
models             the programs and models that are measured
results            tables, and raw records below them (README.md: which benchmark answers which question)
fingerprint.py     what a refactoring must not change, recorded and compared
"""
