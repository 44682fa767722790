"""Random ops written out in plain Python integers and floats, one element after another."""

import math

import numpy as np
import torch

WORD = 2**32


def philox(counter, key):
    """The four words of one block, after the paper's definition."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        high_a, low_a = divmod(0xD2511F53 * a, WORD)
        high_c, low_c = divmod(0xCD9E8D57 * c, WORD)
        a, b, c, d = high_c ^ b ^ k0, low_c, high_a ^ d ^ k1, low_a
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return a, b, c, d


def words(count, seed=0, stream=0, step=None):
    now = 0 if step is None or step is False else int(step) % WORD
    key = (seed % WORD, seed // WORD)
    answer = []
    for i in range(-(-count // 4)):
        answer.extend(philox((i % WORD, i // WORD, stream, now), key))
    return answer[:count]


def _filled(shape, draw, per_element=1, dtype=np.float64, **source):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(shape)
    stream = words(count * per_element, **source)
    values = [draw(*stream[i * per_element : (i + 1) * per_element]) for i in range(count)]
    return np.array(values, dtype).reshape(shape)


def _random_bits(shape, seed=0, stream=0, step=None):
    return _filled(shape, int, dtype=np.int64, seed=seed, stream=stream, step=step)


BITS = {"f64": 24, "f32": 24, "f16": 11, "bf16": 8}


def _random_uniform(shape, low=0.0, high=1.0, dtype="f32", **source):
    bits = BITS[dtype]
    return _filled(
        shape, lambda w: low + (high - low) * (w // 2 ** (32 - bits)) / 2**bits, **source
    )


def _random_normal(shape, mean=0.0, std=1.0, dtype="f32", **source):
    def draw(first, second):
        u, v = (first // 256 + 1) / 2**24, (second // 256) / 2**24
        return mean + std * math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)

    return _filled(shape, draw, per_element=2, **source)


def _random_bernoulli(shape, p=0.5, **source):
    return _filled(shape, lambda w: w / WORD < p, dtype=np.bool_, **source)


def _random_integers(shape, low, high, dtype="i32", **source):
    return _filled(shape, lambda w: low + w * (high - low) // WORD, dtype=np.int64, **source)


def _random_permutation(n, **source):
    drawn = words(n, **source)
    return np.array(sorted(range(n), key=drawn.__getitem__), np.int64)


def _dropout(x, rate=0.5, **source):
    kept = torch.as_tensor(~_random_bernoulli(x.shape, rate, **source))
    return torch.zeros_like(x) if rate == 1 else torch.where(kept, x / (1 - rate), 0.0)


def _sample_row(logits, u, top_k, top_p, temperature, min_p):
    """One row, by lists: rank the tokens, leave some out, walk until the mass is reached."""
    tokens = list(range(len(logits)))
    if temperature == 0:
        return max(tokens, key=lambda t: (logits[t], -t))
    scaled = [value / temperature for value in logits]
    weights = [math.exp(value - max(scaled)) for value in scaled]
    if top_k or top_p < 1 or min_p:
        tokens.sort(key=lambda t: (-scaled[t], t))
        tokens = tokens[: top_k or None]
        whole = sum(weights[t] for t in tokens)
        kept, mass = [], 0.0
        for token in tokens:
            if mass < top_p * whole:
                kept.append(token)
            mass += weights[token]
        tokens = [t for t in kept if weights[t] >= min_p * max(weights)]
    target = u * sum(weights[t] for t in tokens)
    for token in tokens:
        target -= weights[token]
        if target < 0:
            return token
    raise AssertionError("u is below 1, so some token must have been reached")


def _sample(logits, top_k=0, top_p=1.0, temperature=1.0, seed=0, min_p=0.0, stream=0, step=None):
    rows = logits.reshape(-1, logits.shape[-1]).tolist()
    drawn = _random_uniform((len(rows),), seed=seed, stream=stream, step=step)
    picked = [
        _sample_row(row, u, top_k, top_p, temperature, min_p)
        for row, u in zip(rows, drawn, strict=True)
    ]
    return np.array(picked, np.int64).reshape(logits.shape[:-1])


ROWS = {
    "random_bits": _random_bits,
    "random_uniform": _random_uniform,
    "random_normal": _random_normal,
    "random_bernoulli": _random_bernoulli,
    "random_integers": _random_integers,
    "random_permutation": _random_permutation,
    "dropout": _dropout,
    "sample": _sample,
}
