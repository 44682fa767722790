"""A BERT-like encoder: attention both ways over what is not padding, norms after the residuals, exact gelu."""

from darner import Graph

from .writer import Spelling, writer


def bert(
    layers: int = 1,
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = True,
    batch: int = 2,
    tokens: int = 6,
    width: int = 12,
    heads: int = 3,
    inner: int = 24,
    vocabulary: int = 30,
    classes: int = 3,
    dtype: str = "f32",
) -> Graph:
    """A classifier by the first token. ``mask`` is True where a token is not padding.

    Weights lie (out, in), as PyTorch stores them.
    """
    w = writer("bert", spelling, variant, dtype)
    words = w.parameter("words", (vocabulary, width))
    places = w.parameter("places", (tokens, width))
    mask = w.input("mask", (batch, tokens), "bool").reshape((batch, 1, 1, tokens))

    def linear(name, x, out):
        return w.linear(name, x, out, stored="out_in")

    x = w.embedding(w.input("tokens", (batch, tokens), "i32"), words) + places
    x = w.layer_norm("norm", x, 1e-12)
    for i in range(layers):
        with w.graph.scope(f"layer{i}"):
            q, k, v = (linear(name, x, width) for name in ("q", "k", "v"))
            y = linear("out", w.attention(q, k, v, heads, heads, mask=mask), width)
            x = w.layer_norm("norm1", x + y, 1e-12)
            y = linear("down", w.gelu_erf(linear("up", x, inner)), width)
            x = w.layer_norm("norm2", x + y, 1e-12)
    first = w.graph.slice(x, (0, 0, 0), (batch, 1, width)).reshape((batch, width))
    result = linear("head", linear("pool", first, width).tanh(), classes)
    if loss:
        result = w.cross_entropy(result, w.input("labels", (batch,), "i32"))
    w.graph.set_outputs([result])
    return w.graph
