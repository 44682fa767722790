"""SmolVLA: a small transformer, the action expert, that turns noise into a robot's next actions by flow matching.

A language model that sees (SmolVLM2) reads pictures, an instruction and the robot's state: the *prefix*. Each layer of the expert attends to
that layer's keys and values of the prefix. Layers in turns are joint attention, to the prefix and to the actions themselves (0, 2, ...), and
cross-attention, to the prefix alone (1, 3, ...). The expert is told actions that are part noise, and how large that part is, and gives the
velocity on the straight way from actions to noise; ten steps of Euler lead back from noise to actions.

Attention of actions to actions is causal: an action sees itself and those before it. That is how lerobot trains and runs it, so that its
checkpoints mean nothing else. Training and inference are one function here, so that they cannot differ.

>>> from darner.models.smolvla import SmolVLA, SmolVLAConfig
>>> config = SmolVLAConfig(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
...     num_vlm_layers=2, chunk_size=5, max_state_dim=3, max_action_dim=4)
>>> model = SmolVLA(config)
>>> {name: leaf.shape for name, leaf in model.training_graph(batch=2, tokens=6).inputs.items()}
{'embeddings': (2, 6, 32), 'state': (2, 3), 'actions': (2, 5, 4), 'noise': (2, 5, 4), 'time': (2,)}
>>> {name: leaf.shape for name, leaf in model.inference_graph(batch=2, tokens=6).inputs.items()}
{'actions': (2, 5, 4), 'time': (2,)}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import nn
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.integers import round_up
from ..graph.node import Node
from .base import Config, Model, as_type, float_input

INSIDE = "model.vlm_with_expert"
VLM, EXPERT = f"{INSIDE}.vlm.model.text_model", f"{INSIDE}.lm_expert"

Memory = list[tuple[Node, Node]]
"""Keys and values of the prefix, layer by layer, each (batch, tokens + 1, key heads, head_dim)."""


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(Config):
    """The sizes of a SmolVLA: lerobot's fields, and those of the language model's ``text_config``.

    Attributes:
        chunk_size: how many actions are made at once.
        max_state_dim: numbers of the robot's state; shorter ones are filled with 0, as are actions to ``max_action_dim``.
        num_steps: of Euler, from noise to actions.
        num_vlm_layers: how many of the language model's layers are used; the expert has as many.
        self_attn_every_n_layers: every how many layers attention is joint, from the first on; the others are cross-attention.
        expert_width_multiplier: the width of the expert, over that of the language model.
        min_period: the shortest wavelength by which the expert is told the time; ``max_period`` is the longest.
        hidden_size: of the language model, as are ``intermediate_size``, ``num_attention_heads``, ``num_key_value_heads``, ``head_dim`` and ``rms_norm_eps``.
    """

    model_type: ClassVar[str] = "smolvla"
    architecture: ClassVar[str] = "SmolVLAPolicy"

    chunk_size: int = 50
    max_state_dim: int = 32
    max_action_dim: int = 32
    num_steps: int = 10
    attention_mode: str = "cross_attn"
    num_vlm_layers: int = 16
    num_expert_layers: int = -1
    self_attn_every_n_layers: int = 2
    expert_width_multiplier: float = 0.75
    min_period: float = 0.004
    max_period: float = 4.0
    hidden_size: int = 960
    intermediate_size: int = 2560
    num_attention_heads: int = 15
    num_key_value_heads: int = 5
    head_dim: int = 64
    rms_norm_eps: float = 1e-5

    @property
    def layers(self) -> int:
        """How many layers it has, those of the expert among them."""
        return 2 * self.num_vlm_layers

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        heads = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        reads = self.hidden_size * (heads + 3 * self.intermediate_size)
        acts = self.expert_width * (heads + 3 * self.expert_inner)
        return self.num_vlm_layers * (reads + acts)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "cross" not in self.attention_mode:
            raise ArgumentError(
                f"attention_mode {self.attention_mode!r} is not known, only 'cross_attn'"
            )
        if self.num_expert_layers > 0 and self.num_expert_layers != self.num_vlm_layers:
            raise ArgumentError(
                f"the expert has a layer for each of the {self.num_vlm_layers} num_vlm_layers, not {self.num_expert_layers}"
            )
        if self.expert_width % 2:
            raise ArgumentError(
                f"the expert's width is even, but {self.expert_width_multiplier} * {self.hidden_size} is {self.expert_width}"
            )

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it; lerobot names the model by ``type``."""
        found = super().to_hf()
        del found["model_type"], found["architectures"]
        return {"type": self.model_type, **found}

    @property
    def expert_width(self) -> int:
        """The width of the expert."""
        return int(self.hidden_size * self.expert_width_multiplier)

    @property
    def expert_inner(self) -> int:
        """The inner width of the expert's layers: 8 / 3 of its width, up to a multiple of 256."""
        return round_up(4 * int(2 * self.expert_width / 3), 256)

    def joint(self, layer: int) -> bool:
        """Whether a layer of the expert attends to the actions too."""
        every = self.self_attn_every_n_layers
        return every > 0 and layer % every == 0


@dataclass(frozen=True)
class Prefix:
    """Which tokens of the prefix there are: all of them, or those where ``mask`` (batch, tokens) is not 0, and the state behind them."""

    tokens: int
    mask: Node | None

    def visible(self) -> Node | None:
        """Which of the tokens, and of the state's, are to be seen: bool (batch, 1, 1, tokens + 1)."""
        if self.mask is None:
            return None
        batch = self.mask.shape[0]
        last = self.mask.graph.ones((batch, 1), "bool")
        return self.mask.graph.concat([self.mask != 0, last], 1).reshape((batch, 1, 1, -1))

    def positions(self) -> Node | None:
        """The place of each token among those there are; None is 0, 1, 2, ..."""
        if self.mask is None:
            return None
        before = (self.mask != 0).cast("i32").cumsum(1)
        total = before[:, -1:]
        return self.mask.graph.concat([(before - 1).maximum(0), total], 1)

    def behind(self, graph: Graph, count: int) -> Node:
        """The places of ``count`` tokens that follow."""
        steps = graph.arange(count, dtype="i32")
        if self.mask is None:
            return steps + (self.tokens + 1)
        return (self.mask != 0).cast("i32").sum(1, keepdims=True) + 1 + steps


@dataclass(frozen=True)
class SmolVLA(Model):
    """The action expert and the language model's layers in front of it.

    ``prefix_graph`` is run once for what the robot sees: it leaves keys and values in states. ``inference_graph``, in a session that shares
    them, gives the ``velocity`` of ``actions`` at a ``time``, and ``actions`` runs it in ``num_steps`` steps. What the language model takes,
    ``embeddings`` (batch, tokens, hidden_size), are those of pictures and words, times the root of the width as lerobot has them.

    Graphs asked for with ``masked`` have an input ``mask`` (batch, tokens), 0 where the prefix is padded.
    """

    config: SmolVLAConfig

    config_class: ClassVar[type[Config]] = SmolVLAConfig
    frozen: ClassVar[tuple[str, ...]] = (f"{INSIDE}.vlm.*",)
    ignored: ClassVar[tuple[str, ...]] = (
        # What makes embeddings, and what is behind the last keys and values; in graphs of the expert alone, all in front of it.
        f"{INSIDE}.vlm.*",
        "model.state_proj.*",
        "normalize_*",
        "unnormalize_*",
    )

    # ------------------------------------------------------------- layers of both towers

    def _norm(self, name: str, width: int) -> nn.RMSNorm:
        return nn.RMSNorm(name, width, self.config.rms_norm_eps)

    def _heads(self, name: str, x: Node, heads: int) -> Node:
        """``x`` through a matrix, as heads: (batch, length, heads, head_dim)."""
        size = self.config.head_dim
        y = self.linear(f"self_attn.{name}", int(x.shape[-1]), heads * size, bias=False)(x)
        return y.reshape((*x.shape[:-1], heads, size))

    def _queries(self, x: Node, positions: Node | None) -> Node:
        return self._turned(self._heads("q_proj", x, self.config.num_attention_heads), positions)

    def _keys_and_values(self, x: Node, positions: Node | None) -> tuple[Node, Node]:
        keys, values = (
            self._heads(name, x, self.config.num_key_value_heads) for name in ("k_proj", "v_proj")
        )
        return self._turned(keys, positions), values

    def _turned(self, x: Node, positions: Node | None) -> Node:
        return nn.Rope(self.config.head_dim)(x, nn.Sequence(int(x.shape[1]), positions))

    def _added(
        self,
        x: Node,
        q: Node,
        memory: tuple[Node, Node],
        mask: Node | None,
        inner: int,
        causal: bool = False,
    ) -> Node:
        """``x`` and what it sees, then what the layer's matrices make of that."""
        width = int(x.shape[-1])
        seen = q.graph.scaled_dot_attention(q, *memory, mask, layout="bshd", causal=causal)
        inside = self.config.num_attention_heads * self.config.head_dim
        x = x + self.linear("self_attn.o_proj", inside, width, bias=False)(seen.flatten(2))
        y = self._norm("post_attention_layernorm", width)(x)
        return x + nn.SwiGLU("mlp", width, inner, linear=self.linear)(y)

    # ------------------------------------------------------------- the two towers

    def remembered(self, embeddings: Node, state: Node, prefix: Prefix) -> Memory:
        """Keys and values of the prefix.

        Pictures and words see one another; the state, the last token, sees them too, and they do not see it.
        """
        config, graph = self.config, embeddings.graph
        batch, tokens = int(embeddings.shape[0]), prefix.tokens
        told = self.linear("model.state_proj", config.max_state_dim, config.hidden_size)(state)
        x = graph.concat([embeddings, told.reshape((batch, 1, config.hidden_size))], 1)
        sees = np.ones((1, 1, tokens + 1, tokens + 1), bool)
        sees[..., :-1, -1] = False
        mask = graph.constant(sees, dtype="bool")
        visible, positions = prefix.visible(), prefix.positions()
        mask = mask if visible is None else mask.logical_and(visible)
        found: Memory = []
        for layer in range(config.num_vlm_layers):
            with graph.scope(f"{VLM}.layers.{layer}"):
                y = self._norm("input_layernorm", config.hidden_size)(x)
                found.append(self._keys_and_values(y, positions))
                if layer + 1 < config.num_vlm_layers:
                    q = self._queries(y, positions)
                    x = self._added(x, q, found[-1], mask, config.intermediate_size)
        return found

    def velocity(self, actions: Node, time: Node, memory: Memory, prefix: Prefix) -> Node:
        """How noisy actions (batch, chunk_size, max_action_dim) move as the share of noise, ``time`` (batch,), grows."""
        config, graph = self.config, actions.graph
        width, chunk = config.expert_width, config.chunk_size
        x = self._told(
            self.linear("model.action_in_proj", config.max_action_dim, width)(actions), time
        )
        visible, behind = prefix.visible(), prefix.behind(graph, chunk)
        everything = None
        if visible is not None:
            own = graph.ones((visible.shape[0], 1, 1, chunk), "bool")
            everything = graph.concat([visible, own], 3)
        for layer, (keys, values) in enumerate(memory):
            with graph.scope(f"{EXPERT}.layers.{layer}"):
                y = self._norm("input_layernorm", width)(x)
                if config.joint(layer):
                    own_keys, own_values = self._keys_and_values(y, behind)
                    pair = graph.concat([keys, own_keys], 1), graph.concat([values, own_values], 1)
                    q, mask = self._queries(y, behind), everything
                else:
                    # The prefix has positions already; those of the actions begin again.
                    pair = (
                        self._heads("k_proj", keys.flatten(2), config.num_key_value_heads),
                        self._heads("v_proj", values.flatten(2), config.num_key_value_heads),
                    )
                    q, mask = self._queries(y, None), visible
                x = self._added(x, q, pair, mask, config.expert_inner, causal=config.joint(layer))
        x = self._norm(f"{EXPERT}.norm", width)(x)
        return self.linear("model.action_out_proj", width, config.max_action_dim)(x)

    def _told(self, x: Node, time: Node) -> Node:
        """Actions beside sines and cosines of the time, through two matrices."""
        config, graph = self.config, x.graph
        batch, chunk, width = (int(size) for size in x.shape)
        shares = np.linspace(0.0, 1.0, width // 2)
        periods = config.min_period * (config.max_period / config.min_period) ** shares
        # The shortest wave goes through hundreds of turns, of which f32 keeps three digits less.
        angles = as_type(time, "f64").reshape((batch, 1)) * graph.constant(
            2.0 * math.pi / periods, dtype="f64"
        )
        waves = as_type(graph.concat([angles.sin(), angles.cos()], 1), self.dtype)
        waves = waves.reshape((batch, 1, width)).broadcast_to((batch, chunk, width))
        y = self.linear("model.action_time_mlp_in", 2 * width, width)(graph.concat([x, waves], 2))
        return self.linear("model.action_time_mlp_out", width, width)(y.silu())

    # ------------------------------------------------------------- graphs

    def _input(self, graph: Graph, name: str, *shape: int) -> Node:
        return float_input(graph, name, shape, self.dtype)

    def _chunk(self, graph: Graph, name: str, batch: int) -> Node:
        return self._input(graph, name, batch, self.config.chunk_size, self.config.max_action_dim)

    def _prefix(self, graph: Graph, batch: int, tokens: int, masked: bool) -> Prefix:
        return Prefix(tokens, graph.input("mask", (batch, tokens), "i32") if masked else None)

    def _seen(self, graph: Graph, batch: int, prefix: Prefix) -> Memory:
        """Keys and values of the inputs ``embeddings`` and ``state``."""
        config = self.config
        embeddings = self._input(graph, "embeddings", batch, prefix.tokens, config.hidden_size)
        state = self._input(graph, "state", batch, config.max_state_dim)
        return self.remembered(embeddings, state, prefix)

    def _kept(self, graph: Graph, batch: int, prefix: Prefix) -> Memory:
        """The states that have keys and values of the prefix."""
        config = self.config
        shape = (batch, prefix.tokens + 1, config.num_key_value_heads, config.head_dim)
        found: Memory = []
        for layer in range(config.num_vlm_layers):
            place = f"{VLM}.layers.{layer}.self_attn.cache"
            keys, values = (
                nn.state(graph, f"{place}.{kind}", shape, self.dtype) for kind in ("key", "value")
            )
            found.append((keys, values))
        return found

    def prefix_graph(self, *, batch: int = 1, tokens: int = 64, masked: bool = False) -> Graph:
        """States take keys and values of ``embeddings`` (batch, tokens, hidden_size) and ``state`` (batch, max_state_dim).

        The output, ``keys``, are those of the last layer.
        """
        graph = Graph("smolvla.prefix")
        prefix = self._prefix(graph, batch, tokens, masked)
        memory = self._seen(graph, batch, prefix)
        for kept, made in zip(self._kept(graph, batch, prefix), memory, strict=True):
            for leaf, value in zip(kept, made, strict=True):
                graph.set_update(leaf, value)
        graph.relabel(memory[-1][0], "keys")
        graph.set_outputs([memory[-1][0]])
        return graph.verify()

    def inference_graph(self, *, batch: int = 1, tokens: int = 64, masked: bool = False) -> Graph:
        """``velocity`` (batch, chunk_size, max_action_dim) of ``actions`` at ``time`` (batch,), after ``prefix_graph`` in a session that shares states."""
        graph = Graph("smolvla.inference")
        prefix = self._prefix(graph, batch, tokens, masked)
        actions, time = self._chunk(graph, "actions", batch), self._time(graph, batch)
        memory = self._kept(graph, batch, prefix)
        velocity = as_type(self.velocity(actions, time, memory, prefix), self.input_dtype)
        graph.relabel(velocity, "velocity")
        graph.set_outputs([velocity])
        return graph.verify()

    def training_graph(
        self,
        *,
        batch: int = 1,
        tokens: int = 64,
        masked: bool = False,
        expert_only: bool = False,
    ) -> Graph:
        """The mean squared error of the velocity between ``actions`` and ``noise`` (batch, chunk_size, max_action_dim) at ``time`` (batch,).

        ``times`` draws the latter. With ``expert_only`` the prefix is what ``prefix_graph`` left in states, and ``model.state_proj`` does not
        learn; otherwise it does, through the language model, which is ``frozen``.
        """
        graph = Graph("smolvla.training")
        prefix = self._prefix(graph, batch, tokens, masked)
        memory = (self._kept if expert_only else self._seen)(graph, batch, prefix)
        actions, noise = (self._chunk(graph, name, batch) for name in ("actions", "noise"))
        time = self._time(graph, batch)
        share = as_type(time, self.dtype).reshape((batch, 1, 1))
        noisy = share * noise + (1.0 - share) * actions
        velocity = self.velocity(noisy, time, memory, prefix)
        found, wanted = (as_type(one, self.input_dtype) for one in (velocity, noise - actions))
        loss = graph.mse_loss(found, wanted, label="loss")
        graph.set_outputs([loss])
        return graph.verify()

    def _time(self, graph: Graph, batch: int) -> Node:
        return graph.input("time", (batch,), self.input_dtype)

    # ------------------------------------------------------------- in NumPy

    def times(self, count: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        """Times to train at, more of them where there is much noise: Beta(1.5, 1) from 0.001 to 1."""
        return 0.001 + 0.999 * rng.beta(1.5, 1.0, count)

    def actions(
        self, session: Any, noise: npt.NDArray[Any], *, steps: int | None = None, **inputs: Any
    ) -> npt.NDArray[Any]:
        """Actions from ``noise`` (batch, chunk_size, max_action_dim), in steps of Euler from time 1 to 0.

        ``session`` is one of ``inference_graph``; ``inputs`` are what it takes beside actions and time.
        """
        count = self.config.num_steps if steps is None else steps
        if count < 1:
            raise ArgumentError(f"actions are made in at least 1 step, got {count}")
        wanted = (self.config.chunk_size, self.config.max_action_dim)
        if noise.shape[1:] != wanted:
            raise ShapeError(
                f"noise is (batch, {wanted[0]}, {wanted[1]}): chunk_size and max_action_dim; got {noise.shape}"
            )
        x = noise
        for step in range(count):
            time = np.full(len(noise), 1.0 - step / count, noise.dtype)
            x = x - session.run({"actions": x, "time": time, **inputs})["velocity"] / count
        return x
