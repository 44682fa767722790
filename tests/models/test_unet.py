"""The U-Net of Stable Diffusion beside one in PyTorch with the names and the arithmetic of diffusers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner import models, optim
from darner.models.diffusion import NoiseSchedule
from darner.models.unet import UNet, UNetConfig

from . import parity, peers

# --------------------------------------------------------------------------- the peer


def modules(*given):
    return torch.nn.ModuleList(given)


class Named(torch.nn.Module):
    """Nothing but a place for parts by name."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Residual(torch.nn.Module):
    def __init__(self, config, inputs, outputs):
        super().__init__()
        groups, eps = config["norm_num_groups"], config.get("norm_eps", 1e-5)
        self.norm1 = torch.nn.GroupNorm(groups, inputs, eps)
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = torch.nn.Linear(4 * config["block_out_channels"][0], outputs)
        self.norm2 = torch.nn.GroupNorm(groups, outputs, eps)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = torch.nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None
        self.act = {"silu": F.silu, "gelu": F.gelu}[config.get("act_fn", "silu")]

    def forward(self, x, moment):
        y = self.conv1(self.act(self.norm1(x)))
        y = y + self.time_emb_proj(self.act(moment))[:, :, None, None]
        y = self.conv2(self.act(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attend(torch.nn.Module):
    def __init__(self, width, heads, memory):
        super().__init__()
        self.heads = heads
        self.to_q = torch.nn.Linear(width, width, bias=False)
        self.to_k = torch.nn.Linear(memory, width, bias=False)
        self.to_v = torch.nn.Linear(memory, width, bias=False)
        self.to_out = modules(torch.nn.Linear(width, width), torch.nn.Dropout(0.0))

    def forward(self, x, memory):
        opened = [
            matrix(given).unflatten(-1, (self.heads, -1))
            for matrix, given in ((self.to_q, x), (self.to_k, memory), (self.to_v, memory))
        ]
        return self.to_out[0](peers.attention(*opened).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, width, heads, memory):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (torch.nn.LayerNorm(width) for _ in range(3))
        self.attn1 = Attend(width, heads, width)
        self.attn2 = Attend(width, heads, memory)
        proj = Named(proj=torch.nn.Linear(width, 8 * width))
        last = torch.nn.Linear(4 * width, width)
        self.ff = Named(net=modules(proj, torch.nn.Dropout(0.0), last))

    def forward(self, x, context):
        y = self.norm1(x)
        x = x + self.attn1(y, y)
        x = x + self.attn2(self.norm2(x), context)
        value, gate = self.ff.net[0].proj(self.norm3(x)).chunk(2, -1)
        return x + self.ff.net[2](value * F.gelu(gate))


class Transformer(torch.nn.Module):
    def __init__(self, config, width, heads, layers):
        super().__init__()
        self.linear = config.get("use_linear_projection", False)
        self.norm = torch.nn.GroupNorm(config["norm_num_groups"], width, 1e-6)
        make = torch.nn.Linear if self.linear else lambda a, b: torch.nn.Conv2d(a, b, 1)
        self.proj_in, self.proj_out = make(width, width), make(width, width)
        memory = config["cross_attention_dim"]
        self.transformer_blocks = modules(*[Block(width, heads, memory) for _ in range(layers)])

    def forward(self, x, context):
        y, sizes = self.norm(x), x.shape[2:]
        y = y if self.linear else self.proj_in(y)
        y = y.flatten(2).mT
        y = self.proj_in(y) if self.linear else y
        for block in self.transformer_blocks:
            y = block(y, context)
        y = self.proj_out(y) if self.linear else y
        y = y.mT.unflatten(2, sizes)
        return x + (y if self.linear else self.proj_out(y))


def each(value, levels):
    return [value] * levels if isinstance(value, int) else list(value)


class Network(peers.Peer):
    def __init__(self, config):
        super().__init__(config)
        widths = config["block_out_channels"]
        levels, first = len(widths), widths[0]
        layers = each(config["layers_per_block"], levels)
        heads = each(config.get("attention_head_dim", 8), levels)
        depths = each(config.get("transformer_layers_per_block", 1), levels)

        def transformer(level):
            return Transformer(config, widths[level], heads[level], depths[level])

        self.conv_in = torch.nn.Conv2d(config["in_channels"], first, 3, padding=1)
        self.time_embedding = Named(
            linear_1=torch.nn.Linear(first, 4 * first),
            linear_2=torch.nn.Linear(4 * first, 4 * first),
        )
        self.down_blocks, self.up_blocks = modules(), modules()
        skips, width = [first], first
        for level, kind in enumerate(config["down_block_types"]):
            block = Named(resnets=modules())
            for _ in range(layers[level]):
                block.resnets.append(Residual(config, width, widths[level]))
                width = widths[level]
                skips.append(width)
            if kind.startswith("Cross"):
                block.attentions = modules(*[transformer(level) for _ in range(layers[level])])
            if level + 1 < levels:
                halve = torch.nn.Conv2d(width, width, 3, stride=2, padding=1)
                block.downsamplers = modules(Named(conv=halve))
                skips.append(width)
            self.down_blocks.append(block)
        middle = config.get("mid_block_type", "UNetMidBlock2DCrossAttn")
        self.mid_block = None
        if middle is not None:
            self.mid_block = Named(resnets=modules(Residual(config, width, width)))
            if "Cross" in middle:
                self.mid_block.attentions = modules(transformer(levels - 1))
                self.mid_block.resnets.append(Residual(config, width, width))
        for place, kind in enumerate(config["up_block_types"]):
            level = levels - 1 - place
            block = Named(resnets=modules())
            for _ in range(layers[level] + 1):
                block.resnets.append(Residual(config, width + skips.pop(), widths[level]))
                width = widths[level]
            if kind.startswith("Cross"):
                count = layers[level] + 1
                block.attentions = modules(*[transformer(level) for _ in range(count)])
            if level:
                grow = torch.nn.Conv2d(width, width, 3, padding=1)
                block.upsamplers = modules(Named(conv=grow))
            self.up_blocks.append(block)
        self.conv_norm_out = torch.nn.GroupNorm(config["norm_num_groups"], first, 1e-5)
        self.conv_out = torch.nn.Conv2d(first, config["out_channels"], 3, padding=1)
        self.act = {"silu": F.silu, "gelu": F.gelu}[config.get("act_fn", "silu")]

    def moment(self, timesteps, dtype):
        half = self.config["block_out_channels"][0] // 2
        steps = torch.arange(half, dtype=dtype) / (half - self.config.get("freq_shift", 0))
        angles = timesteps[:, None].to(dtype) * torch.exp(-math.log(10000) * steps)
        waves = [angles.sin(), angles.cos()]
        if self.config.get("flip_sin_to_cos", True):
            waves = waves[::-1]
        x = self.time_embedding.linear_1(torch.cat(waves, 1))
        return self.time_embedding.linear_2(self.act(x))

    def forward(self, sample, timesteps, context=None):
        moment = self.moment(timesteps, sample.dtype)

        def layer(block, number, x):
            x = block.resnets[number](x, moment)
            attends = hasattr(block, "attentions") and number < len(block.attentions)
            return block.attentions[number](x, context) if attends else x

        x = self.conv_in(sample)
        skips = [x]
        for block in self.down_blocks:
            for number in range(len(block.resnets)):
                x = layer(block, number, x)
                skips.append(x)
            if hasattr(block, "downsamplers"):
                x = block.downsamplers[0].conv(x)
                skips.append(x)
        if self.mid_block is not None:
            for number in range(len(self.mid_block.resnets)):
                x = layer(self.mid_block, number, x)
        for block in self.up_blocks:
            for number in range(len(block.resnets)):
                x = layer(block, number, torch.cat([x, skips.pop()], 1))
            if hasattr(block, "upsamplers"):
                x = F.interpolate(x, skips[-1].shape[2:], mode="nearest")
                x = block.upsamplers[0].conv(x)
        return self.conv_out(self.act(self.conv_norm_out(x)))


# --------------------------------------------------------------------------- values, gradients, files

BASE = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [8, 16],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 12,
    "attention_head_dim": 2,
    "norm_num_groups": 4,
}
DEEP = {
    "sample_size": [7, 10],
    "out_channels": 3,
    "block_out_channels": [8, 12],
    "layers_per_block": [1, 2],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "attention_head_dim": [2, 3],
    "transformer_layers_per_block": [1, 2],
    "use_linear_projection": True,
    "flip_sin_to_cos": False,
    "freq_shift": 1,
    "act_fn": "gelu",
}
PLAIN = {
    "sample_size": [5, 7],
    "block_out_channels": [8, 12, 8],
    "down_block_types": ["DownBlock2D"] * 3,
    "up_block_types": ["UpBlock2D"] * 3,
    "mid_block_type": "UNetMidBlock2D",
    "cross_attention_dim": None,
}
FLAT = {
    "block_out_channels": [8, 12],
    "down_block_types": ["DownBlock2D"] * 2,
    "up_block_types": ["UpBlock2D"] * 2,
    "mid_block_type": None,
}
VARIANTS = {
    "SD 1": BASE,
    "SD 2, odd sizes": BASE | DEEP,
    "plain": BASE | PLAIN,
    "no middle": BASE | PLAIN | FLAT,
}
AT = {"batch": 2, "tokens": 5}


def inputs(config):
    rng = np.random.default_rng(1)
    size = config["sample_size"]
    size = [size, size] if isinstance(size, int) else size
    found = {
        "sample": rng.standard_normal((2, config["in_channels"], *size)),
        "timesteps": np.array([7, 981]),
        "noise": rng.standard_normal((2, config["out_channels"], *size)),
    }
    if config["cross_attention_dim"]:
        found["context"] = rng.standard_normal((2, 5, config["cross_attention_dim"]))
    return found


def forward(theirs, given):
    return {"noise": theirs(given["sample"], given["timesteps"], given.get("context"))}


def loss(theirs, given):
    return F.mse_loss(forward(theirs, given)["noise"], given["noise"])


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_unet_is_that_of_diffusers(variant, tmp_path):
    """Values in f32 and f64, gradients of every parameter, names of all of them, and files."""
    config = VARIANTS[variant]
    theirs = parity.build(Network, peers.Config(config))
    model = parity.model_of(theirs)
    outputs = ("noise",)
    given = inputs(config)
    parity.check_logits(theirs, model, given, sizes=AT, outputs=outputs, forward=forward)
    parity.check_gradients(theirs, model, given, sizes=AT, loss=loss)
    parity.check_saved(theirs, model, given, tmp_path, sizes=AT, outputs=outputs, forward=forward)


def test_the_u_net_of_stable_diffusion_has_as_many_parameters_as_published():
    """1.x: the field says how many heads there are, and the levels have them all."""
    config = UNetConfig(sample_size=64, cross_attention_dim=768)
    graph = UNet(config).inference_graph(batch=1)
    assert sum(node.type.size for node in graph.parameters.values()) == 859_520_964
    parameters = graph.parameters
    assert parameters["conv_in.weight"].shape == (320, 4, 3, 3)
    place = "up_blocks.1.attentions.2.transformer_blocks.0"
    assert parameters[f"{place}.attn2.to_k.weight"].shape == (1280, 768)
    assert parameters[f"{place}.ff.net.0.proj.weight"].shape == (10240, 1280)
    assert parameters["up_blocks.3.resnets.0.conv_shortcut.weight"].shape == (320, 960, 1, 1)


# --------------------------------------------------------------------------- learning


@pytest.mark.slow
def test_a_plain_unet_learns_to_remove_noise():
    """The noise in blocks of one value is half known after a few steps: 1.0 is what knowing nothing costs."""
    config = UNetConfig.plain((8, 16), norm_num_groups=4, sample_size=8, layers_per_block=1)
    config = replace(config, in_channels=1, out_channels=1)
    schedule = NoiseSchedule(num_train_timesteps=100, beta_schedule="squaredcos_cap_v2")
    rng = np.random.default_rng(0)
    losses = []
    graph = UNet(config).training_graph(batch=16)
    assert list(graph.inputs) == ["sample", "timesteps", "noise"]
    with darner.build_session(graph, optimizer=optim.Adam(3e-3), seed=0) as session:
        for _ in range(100):
            data = np.kron(rng.choice([-1.0, 1.0], (16, 1, 1, 1)), np.ones((8, 8)))
            noise = rng.standard_normal(data.shape)
            timesteps = rng.integers(0, 100, 16)
            noisy = schedule.add_noise(data, noise, timesteps)
            given = {"sample": noisy, "timesteps": timesteps, "noise": noise}
            session.run(parity.arrays(given, "f32"))
            losses.append(session.read_loss())
    assert losses[0] > 0.9
    assert np.mean(losses[-20:]) < 0.3


def test_narrow_models_take_samples_in_f32():
    model = models.from_config(BASE, dtype="bf16")
    graph = model.training_graph(**AT)
    assert [str(node.dtype) for node in graph.inputs.values()] == ["f32", "i32", "f32", "f32"]
    assert {str(node.dtype) for node in graph.parameters.values()} == {"bf16"}
    assert str(graph.outputs[0].dtype) == "f32"


# --------------------------------------------------------------------------- configurations


def test_configurations_of_diffusers_are_read_and_written():
    found = BASE | {"_diffusers_version": "0.6.0", "center_input_sample": False}
    model = models.from_config(found)
    assert isinstance(model, UNet)
    written = model.config.to_hf()
    assert written["_class_name"] == "UNet2DConditionModel"
    assert written["_diffusers_version"] == "0.6.0"
    assert "model_type" not in written
    assert found.items() <= written.items()
    assert models.from_config(written).config == model.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"up_block_types": ["UpBlock2D"]}, "up_block_types of 2 levels are 2 of UpBlock2D and"),
        ({"down_block_types": ["DownBlock2D", "x"]}, "down_block_types of 2 levels .*, x"),
        ({"mid_block_type": "x"}, "mid_block_type is UNetMidBlock2D, .*, got 'x'"),
        ({"attention_head_dim": [2]}, "heads are of 1 levels, but there are 2"),
        ({"cross_attention_dim": None}, "blocks that attend to a context need"),
        ({"class_embed_type": "timestep"}, "a U-Net with class_embed_type 'timestep' is not known"),
    ],
)
def test_mistakes_are_named(changes, message):
    with pytest.raises(darner.ArgumentError, match=message):
        models.from_config(BASE | changes)


def test_a_context_is_needed_where_blocks_attend():
    graph = darner.Graph()
    sample = graph.input("sample", (1, 4, 8, 8))
    with pytest.raises(darner.ArgumentError, match="attend to a context, and none is given"):
        models.from_config(BASE).predicted(sample, graph.input("timesteps", (1,), "i32"), None)


def test_dropout_is_that_of_residual_blocks():
    """Here two on the way down, two in the middle and four on the way up."""
    graph = models.from_config(BASE | {"dropout": 0.1}).training_graph(**AT)
    assert sum(node.op.name == "dropout" for node in graph.nodes) == 8


def test_a_size_is_needed():
    model = models.from_config({**BASE, "sample_size": None})
    with pytest.raises(darner.ArgumentError, match="no sample_size"):
        model.inference_graph()
    assert model.inference_graph(image_size=(8, 4)).outputs[0].shape == (1, 4, 8, 4)
