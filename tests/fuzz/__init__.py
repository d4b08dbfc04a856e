"""Random typed graphs against what they mean: `python -m tests.fuzz --help`."""
