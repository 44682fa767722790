"""GPT-2: learned positions, LayerNorm with bias, causal attention, gelu through tanh, tied words."""

from darner import Graph

from .writer import Spelling, writer


def gpt2(
    layers: int = 1,
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = True,
    joint: bool = True,
    batch: int = 2,
    tokens: int = 6,
    width: int = 12,
    heads: int = 3,
    vocabulary: int = 30,
    dtype: str = "f32",
) -> Graph:
    """A decoder; ``joint`` makes queries, keys and values by one linear layer instead of three."""
    w = writer("gpt2", spelling, variant, dtype)
    words = w.parameter("words", (vocabulary, width))
    places = w.parameter("places", (tokens, width))

    def projected(x):
        if not joint:
            return [w.linear(name, x, width) for name in ("q", "k", "v")]
        whole = w.linear("qkv", x, 3 * width)
        return [
            w.graph.slice(whole, (0, 0, i * width), (batch, tokens, (i + 1) * width))
            for i in range(3)
        ]

    x = w.embedding(w.input("tokens", (batch, tokens), "i32"), words) + places
    for i in range(layers):
        with w.graph.scope(f"layer{i}"):
            q, k, v = projected(w.layer_norm("norm1", x))
            x = x + w.linear("out", w.attention(q, k, v, heads, heads, causal=True), width)
            h = w.linear("up", w.layer_norm("norm2", x), 4 * width)
            x = x + w.linear("down", w.gelu_tanh(h), width)
    logits = w.product(w.layer_norm("norm", x), words, None, "out_in")
    if loss:
        logits = w.cross_entropy(logits, w.input("labels", (batch, tokens), "i32"))
    w.graph.set_outputs([logits])
    return w.graph
