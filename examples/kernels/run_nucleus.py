"""Optimize a program with and without the C kernel of nucleus.py, and say which kernels were chosen.

python examples/kernels/run_nucleus.py
"""

from pathlib import Path

import numpy as np

import tensor_graphs as tg

logits = tg.input("logits", (8, 32_000))
probabilities = tg.cumsum(tg.softmax(logits, axis=-1), axis=-1)
x = np.sort(np.random.default_rng(0).standard_normal((8, 32_000), dtype=np.float32))[:, ::-1].copy()
expected = tg.optimize(probabilities, budget=20)
program = tg.optimize(probabilities, budget=20, kernels=[Path(__file__).with_name("nucleus.py")])
for name, one in (("built-in kernels", expected), ("with nucleus.py", program)):
    assert one.report is not None
    after = one.report.latency_after_us
    print(name, *(f"  {s.name}: {s.us:.1f} µs ({s.source})" for s in one.report.steps), sep="\n")
    print("  whole program: not timed" if after is None else f"  whole program: {after:.1f} µs")
print("largest difference", float(np.abs(program(x) - expected(x)).max()))
