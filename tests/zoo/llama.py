"""Llama: RMSNorm, rotary positions, causal attention with shared key heads, swiglu."""

from darner import Graph

from .writer import Spelling, writer

SMOLLM2 = {
    "layers": 30,
    "tokens": 128,
    "width": 576,
    "heads": 9,
    "kv_heads": 3,
    "inner": 1536,
    "vocabulary": 49152,
}
"""The sizes of SmolLM2-135M over 128 tokens."""


def llama(
    layers: int = 1,
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = True,
    batch: int | None = None,
    tokens: int = 8,
    width: int = 16,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 24,
    vocabulary: int = 32,
    theta: float = 10000.0,
    tied: bool = True,
    stored: str = "in_out",
    dtype: str = "f32",
) -> Graph:
    """A decoder that gives the loss of ``labels`` (those of -100 left out), or the logits of every token."""
    w = writer("llama", spelling, variant, dtype)
    lead = (tokens,) if batch is None else (batch, tokens)
    words = w.parameter("words", (vocabulary, width))
    kv_width = width // heads * kv_heads

    def linear(name, x, out):
        return w.linear(name, x, out, bias=False, stored=stored)

    x = w.embedding(w.input("tokens", lead, "i32"), words)
    for i in range(layers):
        with w.graph.scope(f"layer{i}"):
            h = w.rms_norm("norm1", x)
            q, k, v = linear("q", h, width), linear("k", h, kv_width), linear("v", h, kv_width)
            y = w.attention(q, k, v, heads, kv_heads, causal=True, theta=theta)
            x = x + linear("o", y, width)
            h = w.rms_norm("norm2", x)
            x = x + linear(
                "down", w.swiglu(linear("gate", h, inner), linear("up", h, inner)), width
            )
    h = w.rms_norm("norm", x)
    logits = w.product(h, words, None, "out_in") if tied else linear("head", h, vocabulary)
    if loss:
        logits = w.cross_entropy(logits, w.input("labels", lead, "i32"))
    w.graph.set_outputs([logits])
    return w.graph
