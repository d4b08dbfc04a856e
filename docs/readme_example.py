"""The README's example. A test compares it, and the shape of what it prints, with the README."""

import numpy as np

import tensor_graphs as tg

rng = np.random.default_rng(0)
W, V = 0.03 * rng.standard_normal((2, 1024, 1024), dtype=np.float32)
x, w, v = tg.input("x", (64, 1024)), tg.param("w", (1024, 1024)), tg.param("v", (1024, 1024))

program = tg.optimize(tg.softmax((x * 0.125) @ w + x @ v), params={"w": W, "v": V}, backend="numpy")

print(program(np.ones((64, 1024), np.float32)).shape)  # NumPy in, NumPy out
print(program.report)
