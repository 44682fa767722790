"""A model of darner and the one of transformers that it stands for: the same results, gradients and files.

    hf_model = parity.build(ViTForImageClassification, ViTConfig(...))       # small, random, no dropout
    model = parity.model_of(hf_model)                                        # what darner.models makes of its config.json
    inputs = {"pixels": ..., "labels": ...}                                  # by the names of darner's inputs
    parity.check_logits(hf_model, model, inputs, sizes={"batch": 2})
    parity.check_gradients(hf_model, model, inputs, sizes={"batch": 2})
    parity.check_saved(hf_model, model, inputs, tmp_path, sizes={"batch": 2})

Weights go by the names of a checkpoint, which are not always those of transformers' modules: ``weights_of`` lets transformers write
one. ``sizes`` are the arguments of the graph methods. What a model is called with and gives is in ``INPUTS`` and ``outputs``;
``forward(hf_model, tensors)`` replaces it, and returns a mapping from darner's output names.
"""

import copy
import json
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from torch.overrides import TorchFunctionMode

import darner
from darner import models

transformers.utils.logging.disable_progress_bar()

INPUTS = {"tokens": "input_ids", "pixels": "pixel_values", "mask": "attention_mask"}
"""What transformers calls the inputs of darner's graphs; labels are not given, the loss is computed here."""

TOLERANCES = {"f32": 1e-4, "f64": 1e-9}
"""Of results, relative to the largest."""

TORCH = {"f32": torch.float32, "f64": torch.float64}
NUMPY = {"f32": np.float32, "f64": np.float64}


# --------------------------------------------------------------------------- models


def build(hf_class, config, seed=0, spread=0.1):
    """A random model in float32 with eager attention; every weight a little off its start, so that no 0 or 1 hides a mistake."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config._attn_implementation = "eager"
        hf_model = hf_class(config)
        with torch.no_grad():
            for weight in hf_model.parameters():
                weight.add_(spread * torch.randn(weight.shape))
            for name, buffer in hf_model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer.add_(spread * torch.rand(buffer.shape))
    return hf_model.eval()


def model_of(hf_model, **options):
    """The model of darner that the ``config.json`` of this one describes."""
    with tempfile.TemporaryDirectory() as folder:
        hf_model.config.save_pretrained(folder)
        found = json.loads((Path(folder) / "config.json").read_text())
    found["architectures"] = [type(hf_model).__name__]
    return models.from_config(found, **options)


class _Double(TorchFunctionMode):
    """float64 wherever transformers asks for float32, as its softmax, norms and rotations do."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        kwargs = {name: _doubled(value) for name, value in (kwargs or {}).items()}
        return function(*map(_doubled, args), **kwargs)


def _doubled(value):
    return torch.float64 if value is torch.float32 else value


@contextmanager
def precision(dtype):
    """Where transformers computes in this type, all of it."""
    if dtype == "f32":
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(before)


def in_precision(hf_model, dtype):
    """The same model in another type, tables that it computes for itself included."""
    if dtype == "f32":
        return copy.deepcopy(hf_model)
    with torch.random.fork_rng(), precision(dtype):
        twin = type(hf_model)(hf_model.config).to(TORCH[dtype])
    twin.load_state_dict(hf_model.state_dict())
    return twin.train(hf_model.training)


# --------------------------------------------------------------------------- weights


def weights_of(hf_model):
    """Weights and buffers by the names of the checkpoint that transformers writes."""
    with tempfile.TemporaryDirectory() as folder:
        hf_model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def gradients_of(hf_model):
    """Gradients by the names of a checkpoint: those of a copy whose weights they are."""
    twin = copy.deepcopy(hf_model)
    with torch.no_grad():
        for name, weight in hf_model.named_parameters():
            assert weight.grad is not None, f"the loss does not depend on {name}"
            twin.get_parameter(name).copy_(weight.grad)
    buffers = {name for name, _ in hf_model.named_buffers()}
    return {name: value for name, value in weights_of(twin).items() if name not in buffers}


def copy_weights(session, weights, model):
    """Give parameters and states of a session their values by name, or list everything that does not fit."""
    places = {**dict.fromkeys(session.state(), session.state()), **_parameters(session)}
    wrong = []
    for name, value in weights.items():
        if name not in places:
            known = name in model.tied or any(fnmatchcase(name, one) for one in model.ignored)
            if not known:
                wrong.append(f"{name} {value.shape} of the checkpoint is nothing in the graph")
        elif places[name][name].shape != value.shape:
            found = places[name][name].shape
            wrong.append(f"{name} is {value.shape} in the checkpoint, {found} in the graph")
        else:
            places[name][name] = value
    wrong += [
        f"{name} of the graph is not in the checkpoint"
        for name in _parameters(session)
        if name not in weights
    ]
    assert not wrong, "\n".join(wrong)


def _parameters(session):
    return dict.fromkeys(session.parameters(), session.parameters())


# --------------------------------------------------------------------------- values


def arrays(inputs, dtype):
    """Inputs for darner: floats in ``dtype``, integers as i32."""
    return {
        name: value.astype(NUMPY[dtype] if value.dtype.kind == "f" else np.int32)
        for name, value in inputs.items()
    }


def tensors(inputs, dtype):
    """The same for PyTorch."""
    return {
        name: torch.from_numpy(value.astype(NUMPY[dtype] if value.dtype.kind == "f" else np.int64))
        for name, value in inputs.items()
    }


def call(hf_model, given):
    """What transformers gives for inputs by darner's names."""
    return hf_model(**{INPUTS[name]: value for name, value in given.items() if name in INPUTS})


def cross_entropy(hf_model, given):
    """The mean over ``labels`` that are not -100, each that of the logits in its place."""
    logits = call(hf_model, given).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), given["labels"].flatten())


def assert_close(found, wanted, tolerance, name, floor=0.0):
    """Compare, relative to the largest of ``wanted`` or to ``floor``."""
    assert found.shape == wanted.shape, f"{name} is {found.shape}, not {wanted.shape}"
    scale = max(float(np.abs(wanted).max()), floor)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale, err_msg=name)


def _results(hf_model, given, outputs, forward, dtype):
    with torch.no_grad(), precision(dtype):
        found = (forward or call)(hf_model, given)
    return {name: found[name].numpy() for name in outputs}


# --------------------------------------------------------------------------- the three checks


def check_logits(
    hf_model,
    model,
    inputs,
    *,
    sizes,
    outputs=("logits",),
    dtypes=("f32", "f64"),
    forward=None,
    tolerances=TOLERANCES,
    method="inference_graph",
):
    """The outputs of an inference session are those of transformers, in every type.

    In f64 it is the graph that is compared, to all digits: the reference runs it, since nothing of it is to be quick.
    """
    weights = weights_of(hf_model)
    for dtype in dtypes:
        twin = in_precision(hf_model, dtype).eval()
        wanted = _results(twin, tensors(inputs, dtype), outputs, forward, dtype)
        graph = getattr(replace(model, dtype=dtype), method)(**sizes)
        options = {"device": "reference", "level": 0} if dtype == "f64" else {}
        with darner.build_inference_session(graph, **options) as session:
            copy_weights(session, weights, model)
            given = arrays(inputs, dtype)
            session.run({name: given[name] for name in session.input_names})
            for name in outputs:
                found = session.output(name)
                assert_close(found, wanted[name], tolerances[dtype], f"{name} in {dtype}")


def check_gradients(
    hf_model,
    model,
    inputs,
    *,
    sizes,
    loss=cross_entropy,
    dtypes=("f32",),
    tolerance=1e-4,
):
    """Loss and gradients of every parameter are those of transformers; ``loss(hf_model, tensors)`` is a scalar.

    Each gradient is compared relative to its largest element, and one that is nothing but rounding to the largest of all.
    """
    weights = weights_of(hf_model)
    for dtype in dtypes:
        twin = in_precision(hf_model, dtype).train()
        with precision(dtype):
            wanted_loss = loss(twin, tensors(inputs, dtype))
            wanted_loss.backward()
        wanted = gradients_of(twin)
        floor = 1e-3 * max(float(np.abs(value).max()) for value in wanted.values())
        graph = replace(model, dtype=dtype).training_graph(**sizes)
        with darner.build_session(graph) as session:
            copy_weights(session, weights, model)
            session.run(arrays(inputs, dtype))
            assert_close(
                np.float64(session.read_loss()),
                wanted_loss.double().detach().numpy(),
                tolerance,
                "loss",
            )
            found = session.gradients()
        assert set(found) == set(wanted) - set(model.tied)
        for name, value in found.items():
            assert_close(value, wanted[name], tolerance, f"the gradient of {name}", floor)


def save(session, model, folder):
    """Write ``config.json`` and the weights of a session, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config.to_hf()))
    held = {**dict(session.parameters()), **dict(session.state())}
    save_file(held, folder / "model.safetensors", {"format": "pt"})


def check_saved(
    hf_model, model, inputs, folder, *, sizes, outputs=("logits",), forward=None, tolerance=1e-4
):
    """transformers loads what was written of weights that began in darner, all of it, and gives the same results."""
    folder = Path(folder) / "saved"
    rng = np.random.default_rng(5)
    with darner.build_inference_session(model.inference_graph(**sizes), seed=3) as session:
        for leaves in (session.parameters(), session.state()):
            for name, value in leaves.items():
                if value.dtype.kind == "f":
                    leaves[name] = value + 0.05 * rng.random(value.shape).astype(value.dtype)
        save(session, model, folder)
        given = arrays(inputs, "f32")
        session.run({name: given[name] for name in session.input_names})
        found = {name: session.output(name) for name in outputs}
    read = json.loads((folder / "config.json").read_text())
    again = models.from_config(read)
    assert (type(again), again.config) == (type(model), model.config)
    loaded, report = type(hf_model).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    wanted = _results(loaded.eval(), tensors(inputs, "f32"), outputs, forward, "f32")
    for name in outputs:
        assert_close(found[name], wanted[name], tolerance, name)
