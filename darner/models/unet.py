"""The U-Net of Stable Diffusion: what noise is in a picture, told the time and a text.

>>> from darner.models.unet import UNet, UNetConfig
>>> config = UNetConfig(
...     sample_size=16, block_out_channels=(32, 64), cross_attention_dim=24, attention_head_dim=4, norm_num_groups=8, layers_per_block=1,
...     down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
>>> g = UNet(config).inference_graph(batch=2, tokens=7)
>>> {name: leaf.shape for name, leaf in g.inputs.items()}, g.outputs[0].shape
({'sample': (2, 4, 16, 16), 'timesteps': (2,), 'context': (2, 7, 24)}, (2, 4, 16, 16))

Without blocks that attend there is no context, and the same class is a plain convolutional U-Net:

>>> plain = UNet(UNetConfig.plain((32, 64, 128), norm_num_groups=8, sample_size=32))
>>> list(plain.training_graph(batch=4).inputs)
['sample', 'timesteps', 'noise']
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from .. import nn
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, Model, as_type, float_input
from .diffusion import DiffusersConfig
from .images import pair

DOWN, UP = ("DownBlock2D", "CrossAttnDownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
MIDDLE = ("UNetMidBlock2D", "UNetMidBlock2DCrossAttn")

FIXED: dict[str, tuple[Any, ...]] = {
    "addition_embed_type": (None,),
    "attention_type": ("default",),
    "center_input_sample": (False,),
    "class_embed_type": (None,),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "cross_attention_norm": (None,),
    "dual_cross_attention": (False,),
    "encoder_hid_dim": (None,),
    "encoder_hid_dim_type": (None,),
    "mid_block_scale_factor": (1, 1.0),
    "num_class_embeds": (None,),
    "only_cross_attention": (False,),
    "resnet_out_scale_factor": (1, 1.0),
    "resnet_skip_time_act": (False,),
    "resnet_time_scale_shift": ("default",),
    "reverse_transformer_layers_per_block": (None,),
    "time_cond_proj_dim": (None,),
    "time_embedding_act_fn": (None,),
    "time_embedding_dim": (None,),
    "time_embedding_type": ("positional",),
    "timestep_post_act": (None,),
}
"""What else a configuration of diffusers may say, and the values that mean what is built here."""


@dataclass(frozen=True, kw_only=True)
class UNetConfig(DiffusersConfig):
    """The sizes of a U-Net, as diffusers has them.

    Attributes:
        sample_size: height and width of what comes in, unless a graph is asked for with others.
        block_out_channels: of each level, from the finest to the coarsest.
        layers_per_block: residual blocks of a level on the way down; there is one more on the way up.
        down_block_types: of each level, "CrossAttnDownBlock2D" where it attends to itself and to the context, else "DownBlock2D".
        up_block_types: the same on the way up, from the coarsest.
        mid_block_type: "UNetMidBlock2DCrossAttn", "UNetMidBlock2D" (one residual block), or None.
        cross_attention_dim: the width of the context.
        attention_head_dim: how many heads there are, in all levels or in each: diffusers gave this field the name of another.
        num_attention_heads: the same under its right name, where given.
        transformer_layers_per_block: blocks of a transformer in each place that attends.
        use_linear_projection: whether the matrices around these blocks are stored as matrices, or as convolutions of 1 x 1.
        flip_sin_to_cos: whether cosines of the time stand before sines.
        dropout: of the residual blocks, as in diffusers; the transformers have none.
        freq_shift: how many fewer steps there are from the first wavelength to the last, which is then beyond 10,000.
    """

    architecture: ClassVar[str] = "UNet2DConditionModel"

    sample_size: int | tuple[int, int] | None = None
    in_channels: int = 4
    out_channels: int = 4
    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)
    layers_per_block: int | tuple[int, ...] = 2
    down_block_types: tuple[str, ...] = (DOWN[1], DOWN[1], DOWN[1], DOWN[0])
    mid_block_type: str | None = MIDDLE[1]
    up_block_types: tuple[str, ...] = (UP[0], UP[1], UP[1], UP[1])
    cross_attention_dim: int | None = 1280
    attention_head_dim: int | tuple[int, ...] = 8
    num_attention_heads: int | tuple[int, ...] | None = None
    transformer_layers_per_block: int | tuple[int, ...] = 1
    use_linear_projection: bool = False
    downsample_padding: int = 1
    act_fn: str = "silu"
    dropout: float = 0.0
    norm_num_groups: int = 32
    norm_eps: float = 1e-5
    flip_sin_to_cos: bool = True
    freq_shift: float = 0

    @property
    def layers(self) -> int:
        """How many residual blocks and transformers' blocks it has, at least."""
        levels = range(len(self.block_out_channels))
        return sum(2 * self.at("layers_per_block", level) + 1 for level in levels)

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has: a lower bound, of the convolutions and of what attends on the way down."""
        total = 0
        for level, width in enumerate(self.block_out_channels):
            blocks = self.at("layers_per_block", level)
            total += (2 * blocks + 1) * 18 * width**2
            if self.down_block_types[level] == DOWN[1]:
                depth = self.at("transformer_layers_per_block", level)
                total += blocks * (2 + 18 * depth) * width**2
        return total

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = len(self.block_out_channels)
        for field, known in (("down_block_types", DOWN), ("up_block_types", UP)):
            given = getattr(self, field)
            if len(given) != levels or not set(given) <= set(known):
                raise ArgumentError(
                    f"{field} of {levels} levels are {levels} of {' and '.join(known)}, got {', '.join(given)}"
                )
        if self.mid_block_type not in (None, *MIDDLE):
            raise ArgumentError(
                f"mid_block_type is {MIDDLE[0]}, {MIDDLE[1]} or None, got {self.mid_block_type!r}"
            )
        for field in ("layers_per_block", "transformer_layers_per_block", "heads"):
            given = getattr(self, field)
            if not isinstance(given, int) and len(given) != levels:
                raise ArgumentError(
                    f"{field} are of {len(given)} levels, but there are {levels} of block_out_channels"
                )
        if self.attends and self.cross_attention_dim is None:
            raise ArgumentError("blocks that attend to a context need its cross_attention_dim")
        for field, values in FIXED.items():
            if self.extra.get(field, values[0]) not in values:
                raise ArgumentError(
                    f"a U-Net with {field} {self.extra[field]!r} is not known, only with {values[0]!r}"
                )

    @classmethod
    def plain(cls, block_out_channels: Sequence[int], **changes: Any) -> Self:
        """A U-Net without attention, of as many levels as there are ``block_out_channels``."""
        levels = len(block_out_channels)
        usual: dict[str, Any] = {
            "down_block_types": (DOWN[0],) * levels,
            "up_block_types": (UP[0],) * levels,
            "mid_block_type": MIDDLE[0],
            "cross_attention_dim": None,
        }
        return cls(**{"block_out_channels": tuple(block_out_channels), **usual, **changes})

    @property
    def attends(self) -> bool:
        """Whether any block attends to a context."""
        kinds = (*self.down_block_types, *self.up_block_types, self.mid_block_type)
        return any(kind in (DOWN[1], UP[1], MIDDLE[1]) for kind in kinds)

    @property
    def heads(self) -> int | tuple[int, ...]:
        """How many heads there are, in all levels or in each."""
        return self.num_attention_heads or self.attention_head_dim

    def at(self, field: str, level: int) -> int:
        """What ``field`` says of a level."""
        found: int | tuple[int, ...] = getattr(self, field)
        return found if isinstance(found, int) else found[level]


@dataclass(frozen=True)
class UNet(Model):
    """The noise in a sample.

    ``sample`` (batch, in_channels, height, width), ``timesteps`` (batch,) i32 and, where a block attends, ``context`` (batch, tokens,
    cross_attention_dim), give ``noise``, or whatever the model was trained to give: see ``darner.models.diffusion``.
    """

    config: UNetConfig

    config_class: ClassVar[type[Config]] = UNetConfig

    # ------------------------------------------------------------- parts

    def _activated(self, x: Node) -> Node:
        return nn.activate(self.config.act_fn, x)

    def _norm(self, name: str, channels: int, eps: float) -> nn.GroupNorm:
        return nn.GroupNorm(name, self.config.norm_num_groups, channels, eps)

    def _moment(self, timesteps: Node) -> Node:
        """Sines and cosines of the time through two matrices, and activated, as each residual block takes them."""
        config, graph = self.config, timesteps.graph
        width = config.block_out_channels[0]
        half = width // 2
        # Times go up to a thousand, more than narrow types tell apart.
        exact = self.input_dtype
        exponents = -math.log(10000.0) * np.arange(half) / (half - config.freq_shift)
        frequencies = graph.constant(np.exp(exponents), dtype=exact)
        angles = timesteps.cast(exact).reshape((timesteps.shape[0], 1)) * frequencies
        waves = [angles.sin(), angles.cos()]
        if config.flip_sin_to_cos:
            waves.reverse()
        if width % 2:
            waves.append(graph.zeros((timesteps.shape[0], 1), exact))
        with graph.scope("time_embedding"):
            x = self.linear("linear_1", width, 4 * width)(
                as_type(graph.concat(waves, 1), self.dtype)
            )
            x = self.linear("linear_2", 4 * width, 4 * width)(self._activated(x))
        return self._activated(x)

    def _residual(self, name: str, x: Node, channels: int, moment: Node) -> Node:
        """``x`` and what two convolutions make of it and of the time."""
        config, given = self.config, int(x.shape[1])
        with x.graph.scope(name):
            y = self._activated(self._norm("norm1", given, config.norm_eps)(x))
            y = nn.Conv2d("conv1", given, channels, 3, padding=1)(y)
            shift = self.linear("time_emb_proj", int(moment.shape[1]), channels)(moment)
            y = y + shift.reshape((*shift.shape, 1, 1))
            y = self._activated(self._norm("norm2", channels, config.norm_eps)(y))
            y = y.dropout(config.dropout) if config.dropout else y
            y = nn.Conv2d("conv2", channels, channels, 3, padding=1)(y)
            if given != channels:
                x = nn.Conv2d("conv_shortcut", given, channels, 1)(x)
            return x + y

    def _attention(self, name: str, width: int, heads: int, memory: int | None) -> nn.Attention:
        return nn.Attention(
            name,
            width,
            heads,
            bias=(False, False, False, True),
            names=("to_q", "to_k", "to_v", "to_out.0"),
            causal=False,
            memory_width=memory,
            linear=self.linear,
        )

    def _transformed(self, name: str, x: Node, level: int, context: Node) -> Node:
        """``x`` and what a transformer over its pixels makes of it and of the context."""
        config = self.config
        batch, width, height, across = (int(size) for size in x.shape)
        heads = config.at("heads", level)
        matrix = config.use_linear_projection

        def rows(y: Node) -> Node:
            return y.reshape((batch, width, height * across)).transpose((0, 2, 1))

        def picture(y: Node) -> Node:
            return y.transpose((0, 2, 1)).reshape((batch, width, height, across))

        with x.graph.scope(name):
            y = self._norm("norm", width, 1e-6)(x)
            if matrix:
                y = self.linear("proj_in", width, width)(rows(y))
            else:
                y = rows(nn.Conv2d("proj_in", width, width, 1)(y))
            for number in range(config.at("transformer_layers_per_block", level)):
                with x.graph.scope(f"transformer_blocks.{number}"):
                    itself = self._attention("attn1", width, heads, None)
                    y = y + itself(nn.LayerNorm("norm1", width)(y))
                    told = self._attention("attn2", width, heads, config.cross_attention_dim)
                    y = y + told(nn.LayerNorm("norm2", width)(y), memory=context)
                    y = y + self._fed(nn.LayerNorm("norm3", width)(y), width)
            if matrix:
                y = picture(self.linear("proj_out", width, width)(y))
            else:
                y = nn.Conv2d("proj_out", width, width, 1)(picture(y))
            return x + y

    def _fed(self, x: Node, width: int) -> Node:
        """The matrices behind attention: the second half of the first is the gate."""
        inner = 4 * width
        with x.graph.scope("ff.net"):
            both = self.linear("0.proj", width, 2 * inner)(x)
            hidden = both[..., inner:].geglu(both[..., :inner])
            return self.linear("2", inner, width)(hidden)

    # ------------------------------------------------------------- the whole

    def predicted(self, sample: Node, timesteps: Node, context: Node | None) -> Node:
        """What the network makes of a sample: (batch, out_channels, height, width)."""
        config, graph = self.config, sample.graph
        channels, levels = config.block_out_channels, len(config.block_out_channels)
        if config.attends and context is None:
            raise ArgumentError("this U-Net has blocks that attend to a context, and none is given")
        moment = self._moment(timesteps)

        def layer(number: int, x: Node, level: int, attends: bool) -> Node:
            x = self._residual(f"resnets.{number}", x, channels[level], moment)
            if attends and context is not None:
                x = self._transformed(f"attentions.{number}", x, level, context)
            return x

        x = nn.Conv2d("conv_in", config.in_channels, channels[0], 3, padding=1)(sample)
        skips = [x]
        for level in range(levels):
            with graph.scope(f"down_blocks.{level}"):
                attends = config.down_block_types[level] == DOWN[1]
                for number in range(config.at("layers_per_block", level)):
                    x = layer(number, x, level, attends)
                    skips.append(x)
                if level + 1 < levels:
                    halve = nn.Conv2d(
                        "downsamplers.0.conv",
                        channels[level],
                        channels[level],
                        3,
                        stride=2,
                        padding=config.downsample_padding,
                    )
                    x = halve(x)
                    skips.append(x)
        if config.mid_block_type is not None:
            with graph.scope("mid_block"):
                attends = config.mid_block_type == MIDDLE[1]
                x = layer(0, x, levels - 1, attends)
                if attends:
                    x = self._residual("resnets.1", x, channels[-1], moment)
        for block, level in enumerate(reversed(range(levels))):
            with graph.scope(f"up_blocks.{block}"):
                attends = config.up_block_types[block] == UP[1]
                for number in range(config.at("layers_per_block", level) + 1):
                    x = layer(number, graph.concat([x, skips.pop()], 1), level, attends)
                if level:
                    # Sizes that were odd on the way down are found again.
                    x = x.resize_nearest(skips[-1].shape[2:])
                    width = channels[level]
                    x = nn.Conv2d("upsamplers.0.conv", width, width, 3, padding=1)(x)
        x = self._activated(self._norm("conv_norm_out", channels[0], config.norm_eps)(x))
        return nn.Conv2d("conv_out", channels[0], config.out_channels, 3, padding=1)(x)

    # ------------------------------------------------------------- graphs

    def _size(self, size: int | Sequence[int] | None) -> tuple[int, int]:
        chosen = size or self.config.sample_size
        if chosen is None:
            raise ArgumentError("the configuration has no sample_size", hint="give image_size")
        return pair(chosen)

    def _noise(self, graph: Graph, batch: int, tokens: int, size: tuple[int, int]) -> Node:
        """The network over its inputs."""
        config = self.config
        sample = float_input(graph, "sample", (batch, config.in_channels, *size), self.dtype)
        timesteps = graph.input("timesteps", (batch,), "i32")
        context = None
        if config.attends:
            shape = (batch, tokens, int(config.cross_attention_dim or 0))
            context = float_input(graph, "context", shape, self.dtype)
        return as_type(self.predicted(sample, timesteps, context), self.input_dtype)

    def inference_graph(
        self,
        *,
        batch: int = 1,
        tokens: int = 77,
        image_size: int | Sequence[int] | None = None,
    ) -> Graph:
        """``noise`` (batch, out_channels, height, width) of ``sample``, ``timesteps`` and ``context``."""
        graph = Graph("unet.inference")
        noise = self._noise(graph, batch, tokens, self._size(image_size))
        graph.relabel(noise, "noise")
        graph.set_outputs([noise])
        return graph.verify()

    def training_graph(
        self,
        *,
        batch: int = 1,
        tokens: int = 77,
        image_size: int | Sequence[int] | None = None,
    ) -> Graph:
        """The mean squared error of what is predicted and ``noise`` (batch, out_channels, height, width)."""
        graph = Graph("unet.training")
        size = self._size(image_size)
        predicted = self._noise(graph, batch, tokens, size)
        noise = graph.input("noise", (batch, self.config.out_channels, *size), self.input_dtype)
        graph.set_outputs([graph.mse_loss(predicted, noise, label="loss")])
        return graph.verify()
