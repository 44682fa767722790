"""What NumPy and PyTorch compute for complex numbers and Fourier transforms."""

import math

import numpy as np
import torch


def factor(count, inverse, norm):
    """What darner multiplies a transform by; torch is asked for transforms without factors."""
    if norm == "ortho":
        return 1 / math.sqrt(count)
    return 1 / count if norm == ("backward" if inverse else "forward") else 1.0


def spectrum(z, inverse=False, norm="none", axis=-1):
    if z.numel() == 0:
        return z
    plain = "forward" if inverse else "backward"
    found = (torch.fft.ifft if inverse else torch.fft.fft)(z, dim=axis, norm=plain)
    return found * factor(z.shape[axis], inverse, norm)


def fft(x, inverse=False, norm="none", axis=-1):
    if x.is_complex():
        return spectrum(x.to(torch.complex128), inverse, norm, axis)
    re, im = x.chunk(2, axis)
    found = spectrum(torch.complex(re, im), inverse, norm, axis)
    return torch.cat([found.real, found.imag], axis)


def half(x, norm="none"):
    count = x.shape[-1]
    if x.numel() == 0:
        return [x.new_zeros((*x.shape[:-1], count // 2 + 1))] * 2
    found = torch.fft.rfft(x) * factor(count, False, norm)
    return [found.real, found.imag]


def whole(re, im, n, norm="none"):
    if re.numel() == 0:
        return re.new_zeros((*re.shape[:-1], n))
    alone = torch.zeros(re.shape[-1], dtype=torch.bool)
    alone[0] = True
    if n % 2 == 0:
        alone[-1] = True
    z = torch.complex(re, torch.where(alone, 0.0, im))
    return torch.fft.irfft(z, n, norm="forward") * factor(n, True, norm)


def power(n):
    return 2 ** math.ceil(math.log2(n))


def padded(x, n):
    n = power(x.shape[-1]) if n is None else n
    x = x[..., :n]
    return torch.nn.functional.pad(x, (0, n - x.shape[-1]))


def fft_real(x, norm="none"):
    x = padded(x, None)
    found = spectrum(torch.complex(x, torch.zeros_like(x)), False, norm)
    return [found.real, found.imag]


def rfft(x, norm="none", *, n=None):
    return half(padded(x, n), norm)


def irfft(re, im, n, norm="none"):
    size = n if re.shape[-1] == n // 2 + 1 else power(n)
    return whole(re, im, size, norm)[..., :n]


def ifft_spectrum(re, im, norm="none"):
    return spectrum(torch.complex(re, im), True, norm).real


def psd(re, im):
    return (re**2 + im**2) / re.shape[-1]


def psd_real(x, norm="none"):
    re, im = rfft(x, norm)
    return (re**2 + im**2) / power(x.shape[-1])


def stft(x, frame_len, hop, norm="none", *, window=None):
    frames = x.unfold(-1, frame_len, hop).movedim(-2, 0)
    frames = frames if window is None else frames * window
    return torch.cat(rfft(frames, norm), -1)


def fft_conv1d(a, b, n_fft=0, norm="none"):
    lead = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    a, b = (x.expand(*lead, x.shape[-1]) for x in (a, b))
    rows = torch.zeros((*lead, a.shape[-1] + b.shape[-1] - 1), dtype=a.dtype)
    for shift in range(b.shape[-1]):
        ends = shift, b.shape[-1] - 1 - shift
        rows = rows + torch.nn.functional.pad(a, ends) * b[..., shift : shift + 1]
    return rows


def complex_norm_sq_backward(z, g):
    return z * g


ROWS = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "complex": lambda re, im: torch.complex(*torch.broadcast_tensors(re, im)),
    "conjugate": lambda z: torch.conj(z).resolve_conj(),
    "complex_norm_sq": lambda z: np.abs(z.numpy()) ** 2,
    "complex_norm_sq_backward": complex_norm_sq_backward,
    "fft": fft,
    "real_fft": half,
    "inverse_real_fft": whole,
    "fft_real": fft_real,
    "rfft": rfft,
    "irfft": irfft,
    "ifft_spectrum": ifft_spectrum,
    "psd": psd,
    "psd_real": psd_real,
    "stft": stft,
    "fft_conv1d": fft_conv1d,
}
