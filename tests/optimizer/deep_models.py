"""Deep models in small sizes, whose blocks repeat."""

import random
from importlib import import_module

import darner
from darner import Graph

LENGTH, WIDTH, HEADS, INNER, WORDS = 16, 32, 2, 96, 50


def llama(
    layers,
    *,
    embedded=True,
    tied=False,
    wide_every=0,
    dropout=False,
    recompute=False,
    shown=(),
):
    """A small Llama with a loss."""
    graph = Graph("llama")
    known = {}

    def parameter(name, i, *shape):
        place = name if tied else (name, i)
        if place not in known:
            known[place] = graph.parameter(name, shape)  # the scope says whose it is
        return known[place]

    def layer(x, i):
        h = graph.rms_norm(x, parameter("ln1", i, WIDTH))
        q, k, v = (h @ parameter(name, i, WIDTH, WIDTH) for name in "qkv")
        if wide_every and i % wide_every == wide_every - 1:
            y = graph.sliding_window_attention(q, k, v, HEADS, HEADS, WIDTH // HEADS, 8)
        else:
            y = graph.causal_attention(q, k, v, HEADS, HEADS, WIDTH // HEADS)
        if dropout:
            y = y.dropout(0.1)
        x = x + y @ parameter("o", i, WIDTH, WIDTH)
        h = graph.rms_norm(x, parameter("ln2", i, WIDTH))
        gate, up = (h @ parameter(name, i, WIDTH, INNER) for name in ("gate", "up"))
        return x + graph.swiglu(gate, up) @ parameter("down", i, INNER, WIDTH)

    if embedded:
        x = graph.embedding(
            graph.input("tokens", (LENGTH,), "i32"), graph.parameter("words", (WORDS, WIDTH))
        )
    else:
        x = graph.input("x", (LENGTH, WIDTH))
    results = []
    for i in range(layers):
        with graph.remat(f"layer{i}") if recompute else graph.scope(f"layer{i}"):
            x = layer(x, i)
        if i in shown:
            results.append(x)
    last = graph.rms_norm(x, graph.parameter("last", (WIDTH,)))
    labels = graph.input("labels", (LENGTH,), "i32")
    loss = graph.cross_entropy_loss(last @ graph.parameter("head", (WIDTH, WORDS)), labels)
    graph.set_outputs([loss, *results])
    return graph


def model(name):
    """One of the models whose gradients are tested; their modules are slow to import."""
    return import_module(f"tests.models.test_gradients_{name}").build()


def trained(layers, **options):
    return darner.value_and_grad(llama(layers, **options))


def stepped(graph, update, shuffle=None):
    """A graph that trains: ``update`` states what each parameter becomes."""
    result = darner.value_and_grad(graph)
    loss, *gradients = result.outputs
    pairs = list(zip(result.parameters.values(), gradients, strict=True))
    if shuffle is not None:
        random.Random(shuffle).shuffle(pairs)
    for parameter, gradient in pairs:
        update(result, parameter, gradient)
    result.set_outputs([loss])
    return result


def descent(graph, parameter, gradient):
    graph.set_update(parameter, parameter - 0.1 * gradient)


def adam(graph, parameter, gradient):
    mean = graph.state(f"{parameter.name}.mean", parameter.shape)
    square = graph.state(f"{parameter.name}.square", parameter.shape)
    graph.set_update(mean, next_mean := 0.9 * mean + 0.1 * gradient)
    graph.set_update(square, next_square := 0.99 * square + 0.01 * gradient * gradient)
    graph.set_update(parameter, parameter - 0.001 * next_mean / (next_square.sqrt() + 1e-8))


def encoder_decoder(layers):
    graph = Graph("translate")

    def linear(name, x, out):
        return x @ graph.parameter(name, (x.shape[-1], out))

    def attend(name, x, other):
        q, k, v = linear(f"{name}q", x, WIDTH), *(linear(name + c, other, WIDTH) for c in "kv")
        y = graph.full_attention(q, k, v, HEADS, HEADS, WIDTH // HEADS)
        return linear(f"{name}o", y, WIDTH)

    def block(name, x, memory=None):
        h = x.layer_norm()
        x = x + attend(f"{name}.self.", h, h)
        if memory is not None:
            x = x + attend(f"{name}.cross.", x.layer_norm(), memory)
        inner = linear(f"{name}.up", x.layer_norm(), INNER).gelu()
        return x + linear(f"{name}.down", inner, WIDTH)

    def embedded(name):
        words = graph.parameter(f"{name}.words", (WORDS, WIDTH))
        return graph.embedding(graph.input(name, (LENGTH,), "i32"), words)

    x = embedded("source")
    for i in range(layers):
        x = block(f"encoder{i}", x)
    memory = x.layer_norm()
    y = embedded("target")
    for i in range(layers):
        y = block(f"decoder{i}", y, memory)
    graph.set_outputs([y.mean()])
    return graph


def residual(stages):
    """A small ResNet: a first convolution, then stages of blocks, each of twice the channels."""
    graph = Graph("residual")
    names = iter(range(1000))

    def convolved(x, channels, kernel=3, stride=1):
        w = graph.parameter(f"w{next(names)}", (channels, x.shape[1], kernel, kernel))
        y = graph.conv(x, w, padding=kernel // 2, stride=stride)
        scale, shift = (graph.parameter(f"n{next(names)}", (channels,)) for _ in range(2))
        return graph.group_norm(y, scale, shift, 4)

    x = convolved(graph.input("x", (2, 3, 16, 16)), 8)
    for stage, count in enumerate(stages):
        for i in range(count):
            channels, stride = 8 << stage, 2 if stage and not i else 1
            y = convolved(convolved(x, channels, stride=stride).relu(), channels)
            short = x if x.shape == y.shape else convolved(x, channels, 1, stride)
            x = (y + short).relu()
    graph.set_outputs([x.mean()])
    return graph
