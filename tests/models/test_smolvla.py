"""SmolVLA beside one in PyTorch that goes through prefix and actions at once, with the names and the masks of lerobot."""

import math
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner import models
from darner.models.smolvla import SmolVLA, SmolVLAConfig

from . import parity, peers

CONFIG = {
    "type": "smolvla",
    "chunk_size": 5,
    "max_state_dim": 3,
    "max_action_dim": 4,
    "num_steps": 10,
    "num_vlm_layers": 4,
    "self_attn_every_n_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
TOKENS = 6
AT = {"batch": 2, "tokens": TOKENS}


# --------------------------------------------------------------------------- the peer


class Layer(torch.nn.Module):
    """A layer of a Llama; the last of the language model gives keys and values alone."""

    def __init__(self, config, width, inner, from_keys=False, last=False):
        super().__init__()
        heads, shared = (
            config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value")
        )

        def linear(inputs, outputs):
            return torch.nn.Linear(inputs, outputs, bias=False)

        self.input_layernorm = torch.nn.RMSNorm(width, 1e-5)
        self.self_attn, self.mlp = torch.nn.Module(), torch.nn.Module()
        self.self_attn.k_proj = linear(shared if from_keys else width, shared)
        self.self_attn.v_proj = linear(shared if from_keys else width, shared)
        if last:
            return
        self.self_attn.q_proj = linear(width, heads)
        self.self_attn.o_proj = linear(heads, width)
        self.post_attention_layernorm = torch.nn.RMSNorm(width, 1e-5)
        self.mlp.gate_proj, self.mlp.up_proj = linear(width, inner), linear(width, inner)
        self.mlp.down_proj = linear(inner, width)

    def finish(self, x, seen):
        x = x + self.self_attn.o_proj(seen.flatten(2))
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


def turned(x, positions):
    half = x.shape[-1] // 2
    scale = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = (positions[..., None].to(x.dtype) * scale)[:, :, None]
    low, high = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Policy(peers.Peer):
    def __init__(self, config):
        super().__init__(config)
        width, count = config["hidden_size"], config["num_vlm_layers"]
        narrow = 3 * width // 4
        inner = 256 * math.ceil(narrow * 8 / 3 / 256)
        self.model = torch.nn.Module()
        self.model.state_proj = torch.nn.Linear(config["max_state_dim"], width)
        self.model.action_in_proj = torch.nn.Linear(config["max_action_dim"], narrow)
        self.model.action_out_proj = torch.nn.Linear(narrow, config["max_action_dim"])
        self.model.action_time_mlp_in = torch.nn.Linear(2 * narrow, narrow)
        self.model.action_time_mlp_out = torch.nn.Linear(narrow, narrow)
        both = self.model.vlm_with_expert = torch.nn.Module()
        both.vlm = torch.nn.Module()
        both.vlm.model = torch.nn.Module()
        text = both.vlm.model.text_model = torch.nn.Module()
        text.layers = torch.nn.ModuleList(
            Layer(config, width, config["intermediate_size"], last=layer == count - 1)
            for layer in range(count)
        )
        both.lm_expert = torch.nn.Module()
        both.lm_expert.layers = torch.nn.ModuleList(
            Layer(config, narrow, inner, from_keys=not self.joint(layer)) for layer in range(count)
        )
        both.lm_expert.norm = torch.nn.RMSNorm(narrow, 1e-5)

    def joint(self, layer):
        every = self.config["self_attn_every_n_layers"]
        return every > 0 and layer % every == 0

    def velocity(self, noisy, given):
        """All of it in one pass: a token sees those of its own block, as numbered by ``blocks``, and of the blocks before."""
        model, heads = self.model, (-1, self.config["head_dim"])
        time, embeddings = given["time"], given["embeddings"]
        batch, tokens, chunk = len(time), embeddings.shape[1], noisy.shape[1]
        prefix = torch.cat([embeddings, model.state_proj(given["state"])[:, None]], 1)
        x = model.action_in_proj(noisy)
        half = x.shape[-1] // 2
        periods = 0.004 * 1000.0 ** torch.linspace(0, 1, half, dtype=torch.float64)
        angles = time.double()[:, None] * 2.0 * math.pi / periods
        waves = torch.cat([angles.sin(), angles.cos()], 1)[:, None].expand(batch, chunk, 2 * half)
        x = model.action_time_mlp_in(torch.cat([x, waves.to(x.dtype)], 2))
        x = model.action_time_mlp_out(F.silu(x))

        there = given.get("mask", torch.ones(batch, tokens, dtype=torch.int64)) != 0
        there = torch.cat([there, torch.ones(batch, 1 + chunk, dtype=torch.bool)], 1)
        blocks = torch.cat([torch.zeros(tokens), torch.arange(1, 2 + chunk)])
        sees = (blocks[None, :] <= blocks[:, None]) & there[:, None, :] & there[:, :, None]
        sees = sees[:, None]
        places = there.long().cumsum(1) - 1
        first = tokens + 1
        for layer in range(self.config["num_vlm_layers"]):
            vlm = model.vlm_with_expert.vlm.model.text_model.layers[layer]
            expert = model.vlm_with_expert.lm_expert.layers[layer]
            y, z = vlm.input_layernorm(prefix), expert.input_layernorm(x)
            k, v = (
                getattr(vlm.self_attn, one)(y).unflatten(2, heads) for one in ("k_proj", "v_proj")
            )
            k = turned(k, places[:, :first])
            q = expert.self_attn.q_proj(z).unflatten(2, heads)
            if self.joint(layer):
                own = [
                    getattr(expert.self_attn, one)(z).unflatten(2, heads)
                    for one in ("k_proj", "v_proj")
                ]
                keys = torch.cat([k, turned(own[0], places[:, first:])], 1)
                values = torch.cat([v, own[1]], 1)
                seen = peers.attention(
                    turned(q, places[:, first:]), keys, values, sees[:, :, first:]
                )
            else:
                keys = expert.self_attn.k_proj(k.flatten(2)).unflatten(2, heads)
                values = expert.self_attn.v_proj(v.flatten(2)).unflatten(2, heads)
                q = turned(q, places[:, first:] - places[:, first : first + 1])
                seen = peers.attention(q, keys, values, sees[:, :, first:, :first])
            x = expert.finish(x, seen)
            if layer + 1 < self.config["num_vlm_layers"]:
                q = turned(vlm.self_attn.q_proj(y).unflatten(2, heads), places[:, :first])
                seen = peers.attention(q, k, v, sees[:, :, :first, :first])
                prefix = vlm.finish(prefix, seen)
        return model.action_out_proj(model.vlm_with_expert.lm_expert.norm(x))

    def integrated(self, noise, given, steps):
        x, time = noise, 1.0
        for _ in range(steps):
            at = torch.full((len(x),), time, dtype=x.dtype)
            x = x - self.velocity(x, {**given, "time": at}) / steps
            time -= 1.0 / steps
        return x


def loss(theirs, given):
    share = given["time"][:, None, None]
    noisy = share * given["noise"] + (1 - share) * given["actions"]
    return F.mse_loss(theirs.velocity(noisy, given), given["noise"] - given["actions"])


# --------------------------------------------------------------------------- values, gradients, files


def inputs(masked):
    rng = np.random.default_rng(3)
    found = {
        "embeddings": rng.standard_normal((2, TOKENS, 32)),
        "state": rng.standard_normal((2, 3)),
        "actions": rng.standard_normal((2, 5, 4)),
        "noise": rng.standard_normal((2, 5, 4)),
        "time": np.array([0.9, 0.25]),
    }
    if masked:
        found["mask"] = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0]])
    return found


def sessions(model, weights, masked):
    """One that reads the prefix, and one with its keys and values that gives velocities."""
    prefix = darner.build_inference_session(model.prefix_graph(**AT, masked=masked))
    graph = model.inference_graph(**AT, masked=masked)
    expert = darner.build_inference_session(graph, share=prefix)
    for session in (prefix, expert):
        for name in session.parameters():
            session.set_parameter(name, weights[name])
    names = {*prefix.parameters(), *expert.parameters()}
    assert names == set(weights)
    return prefix, expert


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_step_and_ten_steps_are_those_of_lerobot(dtype, masked):
    theirs = parity.build(Policy, peers.Config(CONFIG))
    model = replace(parity.model_of(theirs), dtype=dtype)
    weights = parity.weights_of(theirs)
    twin = parity.in_precision(theirs, dtype)
    given = inputs(masked)
    arrays, tensors = parity.arrays(given, dtype), parity.tensors(given, dtype)
    with torch.no_grad():
        step = twin.velocity(tensors["actions"], tensors)
        ten = twin.integrated(tensors["noise"], tensors, 10)
    prefix, expert = sessions(model, weights, masked)
    with prefix, expert:
        prefix.run({name: arrays[name] for name in prefix.input_names})
        found = expert.run({name: arrays[name] for name in expert.input_names})["velocity"]
        mask = {"mask": arrays["mask"]} if masked else {}
        made = model.actions(expert, arrays["noise"], **mask)
    tolerance = parity.TOLERANCES[dtype]
    assert made.dtype == parity.NUMPY[dtype]
    parity.assert_close(found, step.numpy(), tolerance, "velocity")
    parity.assert_close(made, ten.numpy(), tolerance, "actions")


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients_of_every_parameter_are_those_of_lerobot(masked):
    theirs = parity.build(Policy, peers.Config(CONFIG))
    model = parity.model_of(theirs)
    sizes = {**AT, "masked": masked}
    parity.check_gradients(theirs, model, inputs(masked), sizes=sizes, loss=loss)


def test_files_are_read_back(tmp_path):
    theirs = parity.build(Policy, peers.Config(CONFIG))
    model = parity.model_of(theirs)
    given = inputs(masked=False)
    with darner.build_session(model.training_graph(**AT), seed=3) as session:
        session.run(parity.arrays(given, "f32"))
        parity.save(session, model, tmp_path)
        found = session.read_loss()
    read, report = Policy.from_pretrained(tmp_path, None, True)
    assert not any(report.values()), report
    again = models.from_config(dict(read.config))
    assert (type(again), again.config) == (SmolVLA, model.config)
    wanted = loss(read, parity.tensors(given, "f32")).item()
    assert found == pytest.approx(wanted, rel=1e-4)


def test_training_the_expert_alone_costs_the_same_loss():
    """Keys and values that another session left are the same as those computed in the step; and training and inference agree."""
    model = models.from_config(CONFIG)
    arrays = parity.arrays(inputs(masked=False), "f32")
    whole = darner.build_session(model.training_graph(**AT), seed=1)
    whole.run(arrays)
    prefix = darner.build_inference_session(model.prefix_graph(**AT), share=whole)
    prefix.run({name: arrays[name] for name in prefix.input_names})
    graph = model.training_graph(**AT, expert_only=True)
    assert not any(fnmatchcase(name, "*.vlm.*") for name in graph.parameters)
    alone = darner.build_session(graph, share=[whole, prefix])
    alone.run({name: arrays[name] for name in alone.input_names})
    assert alone.read_loss() == pytest.approx(whole.read_loss(), rel=1e-6)
    gradients = whole.gradients()
    for name, value in alone.gradients().items():
        parity.assert_close(value, gradients[name], 1e-4, name)
    expert = darner.build_inference_session(model.inference_graph(**AT), share=[whole, prefix])
    share = arrays["time"][:, None, None]
    noisy = share * arrays["noise"] + (1 - share) * arrays["actions"]
    velocity = expert.run({"actions": noisy, "time": arrays["time"]})["velocity"]
    error = np.mean((velocity - (arrays["noise"] - arrays["actions"])) ** 2)
    assert error == pytest.approx(whole.read_loss(), rel=1e-5)


def velocities(model, given, weights):
    """By the reference backend."""
    graph = model.inference_graph(**AT)
    states = {name: weights[name] for name in graph.states}
    params = {name: weights[name] for name in graph.parameters}
    return darner.run(graph, given, params, state=states)[0]


def test_an_action_moves_those_behind_it_and_none_before():
    """In training and in inference: attention between actions is causal."""
    model = models.from_config(CONFIG, dtype="f64")
    rng = np.random.default_rng(0)
    graph = model.inference_graph(**AT)
    leaves = {**graph.parameters, **graph.states}
    weights = {name: 0.3 * rng.standard_normal(node.shape) for name, node in leaves.items()}
    actions, time = rng.standard_normal((2, 5, 4)), np.array([0.5, 0.1])
    before = velocities(model, {"actions": actions, "time": time}, weights)
    actions[:, 2] += 1.0
    after = velocities(model, {"actions": actions, "time": time}, weights)
    moved = np.abs(after - before).max((0, 2))
    assert moved[:2].tolist() == [0.0, 0.0]
    assert (moved[2:] > 1e-3).all()


# --------------------------------------------------------------------------- sizes and mistakes


def test_smolvla_base_has_the_sizes_that_are_published():
    config = SmolVLAConfig()
    assert (config.expert_width, config.expert_inner) == (720, 2048)
    assert [config.joint(layer) for layer in range(4)] == [True, False, True, False]
    graph = SmolVLA(config).inference_graph(batch=1)
    shapes = {name: node.shape for name, node in graph.parameters.items()}
    place = "model.vlm_with_expert.lm_expert.layers"
    assert shapes[f"{place}.0.self_attn.q_proj.weight"] == (960, 720)
    assert shapes[f"{place}.0.self_attn.k_proj.weight"] == (320, 720)
    assert shapes[f"{place}.1.self_attn.k_proj.weight"] == (320, 320)
    assert shapes[f"{place}.15.mlp.down_proj.weight"] == (720, 2048)
    assert shapes["model.action_time_mlp_in.weight"] == (720, 1440)
    # About a hundred million, as the paper says: eight layers of each kind, the norm, and what is around them.
    same = 2 * 960 * 720 + 3 * 720 * 2048 + 2 * 720
    around = 720 + (32 * 720 + 720) + (720 * 32 + 32) + (1440 * 720 + 720) + (720 * 720 + 720)
    wanted = 8 * (same + 2 * 320 * 720) + 8 * (same + 2 * 320 * 320) + around
    assert sum(node.type.size for node in graph.parameters.values()) == wanted == 99_849_312
    whole = SmolVLA(config).training_graph(batch=1)
    assert whole.parameters["model.state_proj.weight"].shape == (960, 32)
    assert graph.outputs[0].shape == (1, 50, 32)


def test_what_a_checkpoint_has_beside_is_ignored():
    model = SmolVLA(SmolVLAConfig())
    for name in (
        "model.vlm_with_expert.vlm.model.vision_model.embeddings.patch_embedding.weight",
        "model.vlm_with_expert.vlm.model.text_model.layers.15.mlp.up_proj.weight",
        "model.vlm_with_expert.vlm.lm_head.weight",
    ):
        assert any(fnmatchcase(name, pattern) for pattern in model.ignored)


def test_times_are_drawn_towards_noise():
    """Beta(1.5, 1) has the mean 0.6 and the distribution x ** 1.5."""
    times = SmolVLA(SmolVLAConfig()).times(20000, np.random.default_rng(0))
    assert 0.001 <= times.min() <= times.max() <= 1.0
    assert times.mean() == pytest.approx(0.001 + 0.999 * 0.6, abs=0.01)
    assert np.mean(times < 0.5) == pytest.approx((0.499 / 0.999) ** 1.5, abs=0.01)


def test_steps_of_euler_go_from_1_to_0():
    """A velocity that is the time itself is summed by hand: 1 + 3/4 + 1/2 + 1/4 over 4 steps."""

    class Session:
        def run(self, given):
            return {
                "velocity": np.broadcast_to(given["time"][:, None, None], given["actions"].shape)
            }

    model = models.from_config(CONFIG)
    found = model.actions(Session(), np.full((2, 5, 4), 1.0), steps=4)
    np.testing.assert_allclose(found, 1.0 - 0.625)


def test_narrow_models_take_actions_in_f32():
    graph = models.from_config(CONFIG, dtype="bf16").training_graph(**AT)
    assert {str(node.dtype) for node in graph.inputs.values()} == {"f32"}
    assert {str(node.dtype) for node in graph.parameters.values()} == {"bf16"}


def test_mistakes_are_named():
    with pytest.raises(darner.ArgumentError, match="attention_mode 'self_attn' is not known"):
        models.from_config(CONFIG | {"attention_mode": "self_attn"})
    with pytest.raises(darner.ArgumentError, match="each of the 4 num_vlm_layers, not 2"):
        models.from_config(CONFIG | {"num_expert_layers": 2})
    with pytest.raises(darner.ArgumentError, match="the expert's width is even"):
        models.from_config(CONFIG | {"hidden_size": 36})
    model = models.from_config(CONFIG)
    with pytest.raises(darner.ShapeError, match=r"noise is \(batch, 5, 4\).*got \(1, 4, 4\)"):
        model.actions(None, np.zeros((1, 4, 4)))
    with pytest.raises(darner.ArgumentError, match="at least 1 step, got 0"):
        model.actions(None, np.zeros((1, 5, 4)), steps=0)
