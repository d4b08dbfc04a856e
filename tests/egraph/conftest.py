"""Lets the tests of this folder import their neighbour random_graphs.py, which is no test and in no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
