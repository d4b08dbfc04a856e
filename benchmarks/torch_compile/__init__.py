"""`tg.compile` and training steps beside eager PyTorch and `torch.compile`."""
