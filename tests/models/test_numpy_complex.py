"""Fourier transforms and complex numbers inside of traced NumPy functions give NumPy's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensor_graphs.errors import TraceError
from tensor_graphs.models.functions.trace import trace

from .traced_results import results

RANDOM = np.random.default_rng(22)
X = RANDOM.standard_normal((3, 4, 10))
F = np.fft


def both(z: Any) -> Any:
    """Parts of complex results, real results unchanged."""
    return (z.real, z.imag) if np.iscomplexobj(z) else z


def c(x: Any) -> Any:
    """Complex numbers [3, 4, 5] made of an array [3, 4, 10]."""
    return x[..., :5] + 1j * x[..., 5:]


def changed(z: Any) -> Any:
    other = z
    z *= 2 - 1j
    z[0, 1:] = 3j
    z[1, 0, 2] -= 1
    z[0, 0][1:] /= 2
    z.real[2] += 1
    return other


def set_parts(x: Any) -> Any:
    z = c(x)
    z.real = x[..., :5] ** 2
    z.imag *= -1
    return z


def written_through(view: Callable[[Any], Any], x: Any) -> Any:
    """Complex numbers of which a view is written to."""
    z = c(x)
    view(z)[0] = 7j
    return z


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "fft": lambda x: F.fft(x), "fft, n": lambda x: F.fft(x, 7, 1, "ortho"), "fft, longer": lambda x: F.fft(x, n=13, norm="forward"),
    "ifft": lambda x: F.ifft(c(x), axis=1), "ifft, forward": lambda x: F.ifft(x, norm="forward"), "rfft": lambda x: F.rfft(x, axis=0),
    "rfft, n": lambda x: F.rfft(x, 16), "irfft": lambda x: F.irfft(c(x)), "irfft, odd": lambda x: F.irfft(c(x), 9, 2, "ortho"),
    "irfft, real": lambda x: F.irfft(x, 4, 1), "irfft, longer": lambda x: F.irfft(c(x), 15), "hfft": lambda x: F.hfft(c(x)), "ihfft": lambda x: F.ihfft(x, norm="ortho"),
    "fft2": lambda x: F.fft2(x, (5, 6)), "ifft2": lambda x: F.ifft2(c(x)), "fftn": lambda x: F.fftn(x, axes=(0, 2)), "ifftn": lambda x: F.ifftn(x, norm="ortho"),
    "rfft2": lambda x: F.rfft2(x), "irfft2": lambda x: F.irfft2(c(x), (3, 7)), "rfftn": lambda x: F.rfftn(x), "irfftn": lambda x: F.irfftn(c(x)),
    "long": lambda x: F.fft(x.ravel(), 300), "long, real": lambda x: F.irfft(F.rfft(x.ravel(), 360) * 1j), "prime": lambda x: F.rfft(x.ravel(), 131),
    "shifted": lambda x: F.ifftshift(F.fftshift(F.fft(x), axes=1)), "of integers": lambda x: F.fft((x * 4).astype(np.int16)), "of bools": lambda x: F.rfft(x > 0),
    "half": lambda x: F.fft(x.astype(np.float16)), "one": lambda x: F.fft(x[..., :1]), "power": lambda x: np.abs(F.rfft(x)) ** 2,
    "convolution": lambda x: F.irfft(F.rfft(x[0], 20) * F.rfft(x[1, :3], 20)[0], 20), "frequencies": lambda x: F.rfft(x) * (2j * np.pi * F.rfftfreq(10, 0.1)),
    "derivative": lambda x: F.ifft(1j * F.fftfreq(10) * F.fft(x)).real, "phase": lambda x: np.unwrap(np.angle(F.fft(x))),
}  # fmt: skip
ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: c(x) + x[..., :5] - 2 + (1 - 1j), "product": lambda x: c(x) * c(x)[::-1] * 2j, "quotient": lambda x: c(x) / c(x)[::-1], "one over": lambda x: 1 / c(x),
    "by a number": lambda x: c(x) / 3 - c(x) / 2j, "power": lambda x: c(x) ** 3 + c(x) ** 2 + c(x) ** -2, "root": lambda x: c(x) ** 0.5 + np.sqrt(c(x)), "exp": lambda x: np.exp(c(x)),
    "log": lambda x: np.log(c(x)), "oscillation": lambda x: np.exp(-2j * np.pi * x * np.arange(10)), "abs": lambda x: np.abs(c(x)) + abs(1j * x[..., :5]),
    "conj": lambda x: c(x).conj() * np.conj(c(x)), "sign": lambda x: np.sign(c(x)), "equal": lambda x: (c(x) == c(x)[:1]) | (c(x) != 1j), "tests": lambda x: np.isfinite(c(x)) & ~np.isnan(c(x)),
    "matmul": lambda x: c(x) @ c(x).swapaxes(1, 2), "matmul, real": lambda x: x.swapaxes(1, 2) @ c(x), "dot": lambda x: np.dot(c(x)[0], np.arange(5) * 1j), "vdot": lambda x: np.vdot(c(x)[0], c(x)[1]),
    "einsum": lambda x: np.einsum("bij,bkj->bik", c(x), x[..., 5:]), "outer": lambda x: np.outer(c(x)[0, 0], x[0, 0]), "moves": lambda x: np.roll(np.concatenate([c(x), x], -1), 2, 1)[:, ::-1, None].T.reshape(-1, 2),
    "where": lambda x: np.where(x[..., :5] > 0, c(x), 0.5), "sums": lambda x: c(x).sum(1) + c(x).mean(axis=(1,)) + np.cumsum(c(x), 1)[:, -1], "stack": lambda x: np.stack([c(x), x[..., :5]]),
    "norm": lambda x: np.linalg.norm(c(x), axis=-1), "split": lambda x: np.split(c(x), 2, 1)[1], "in place": lambda x: changed(c(x)), "angle": lambda x: np.angle(c(x), deg=True),
    "of bytes": lambda x: np.abs((x * 9).astype(np.int8) + 1j) + np.abs((x > 0) * 1j) + np.abs(x.astype(np.float16) * 1j),
    "keywords": lambda x: np.sum(a=c(x), axis=0) + np.stack(arrays=[c(x)[0], c(x)[1]])[0], "power 0": lambda x: (c(x) / 0) ** 0, "set parts": set_parts, "real zeros": lambda x: np.zeros_like(c(x), float), "complex ones": lambda x: np.ones_like(c(x).real, complex) * c(x),
    "loop": lambda x: sum(z * i for i, z in enumerate(c(x))), "scalar": lambda x: c(x)[0, 1, 2] * np.complex64(1 + 2j), "pad": lambda x: np.tile(np.take(c(x), [0, -1], axis=1), 2),
}  # fmt: skip


def agrees(function: Callable[[Any], Any], x: Any) -> None:
    for a, b in results(lambda x: both(function(x)), x):
        near = 2e-5 if x.dtype == np.float32 or b.dtype == np.float32 else 1e-11
        scale = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        np.testing.assert_allclose(a, b, rtol=near, atol=near * scale)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    for x in (X, X.astype(np.float32), np.zeros_like(X)):
        agrees(TRANSFORMS[name], x)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_complex_arithmetic(name: str) -> None:
    """Numbers of any size and zeros, too; quotients and roots do not overflow where NumPy's do not."""
    ties = RANDOM.integers(-1, 2, X.shape) * 1.0
    for x in (X, X.astype(np.float32), ties, X * 1e120, X[:, :, :] * RANDOM.choice([1e-150, 1e150], X.shape)):
        if np.abs(x).max() < 1e9 or name in ("quotient", "one over", "by a number", "abs", "sum", "sign"):
            agrees(ARITHMETIC[name], x)


ENDS = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e308, 5e-324])
#: functions of pairs of such numbers, whose parts NumPy takes from C99, annex G, or from its own rules
AT_ENDS: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt, "exp": np.exp, "sign": np.sign, "mean": lambda z: np.mean(z), "mean, axis": lambda z: z[::2].mean(1, keepdims=True),
    "norm": lambda z: np.linalg.norm(z, axis=1), "norm, 2": lambda z: np.linalg.norm(z[:, 3], 2), "norm, 1": lambda z: np.linalg.norm(z, 1, axis=0),
    "to complex": lambda z: z.real.astype(complex) + np.ones_like(z.imag, dtype=np.complex128) * 2j,
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ENDS)
def test_infinite_and_huge_parts(name: str) -> None:
    re, im = np.meshgrid(ENDS, ENDS)

    def run(re: Any, im: Any) -> Any:
        z = re.astype(complex)
        z.imag = im
        return both(AT_ENDS[name](z))

    for a, b in results(run, re, im):
        np.testing.assert_allclose(a, b, rtol=1e-12)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "x.real": lambda x: F.fft(x), "its parts": lambda x: np.sin(F.fft(x)).real, "one product": lambda x: np.einsum("i,i,i->", *[F.fft(x[0, 0])] * 3).real,
    "x.copy()": lambda x: written_through(np.ravel, x).real, "leave that": lambda x: np.einsum("i,i->i", F.fft(x[0, 0]), 1j * x[0, 0], out=F.fft(x[0, 0])).real,
    "work with": lambda x: np.diff(F.fft(x), prepend=1j).real, "np.exp(": lambda x: (F.fft(x) ** np.inf).real, "of complex ones": lambda x: F.rfft(F.fft(np.tile(x, 400))).real,
    "at most": lambda x: F.fft(x.ravel(), 2053).real, "np.exp": lambda x: (F.fft(x) ** x).real,
}  # fmt: skip


@pytest.mark.parametrize("hint", REFUSED)
def test_refusals_say_what_to_write(hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace(REFUSED[hint], [X])
    assert hint in str(caught.value)
