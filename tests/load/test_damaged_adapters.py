"""Adapters of others: what is wrong with their numbers and names is told, and no pattern of theirs is run."""

import json
import math
import time

import numpy as np
import pytest

from darner import FormatError, load, nn


@pytest.fixture
def folder(tmp_path):
    learned = {
        "m.q_proj.lora_A.weight": np.ones((2, 8), np.float32),
        "m.q_proj.lora_B.weight": np.ones((8, 2), np.float32),
    }
    load.save_adapter(tmp_path, learned, nn.LoRA(rank=2, alpha=4.0))
    return tmp_path


def rewrite(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"lora_alpha": value}, "lora_alpha=.*no number from 0 to") for value in (math.nan, math.inf, -1, "4", None, True, [], 10**400)),
        *(({"lora_dropout": value}, "lora_dropout=.*no number from 0 to 1") for value in (math.nan, 1.5, -0.1, "x", None, True)),
        *(({"r": value}, "the rank r=.*no whole number from 1 to 65,536") for value in (0, -2, 2.0, "2", None, True, 10**12, math.nan, [2])),
        ({"r": 3}, r"says rank 3, but 'm.q_proj.lora_A.weight' has the shape \(2, 8\)"),
        *(({"target_modules": value}, "target_modules=") for value in ([], "", 3, [3], [""], {}, ["k_proj"], True)),
        ({"peft_type": ["LORA"]}, r"of the kind \['LORA'\]"),
        ({"rank_pattern": {"x" * 10_000: 1}}, "rank_pattern="),
        ({"init_lora_weights": "pissa_niter_" + "4" * 10_000}, "was started by"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_adapter_is_told(folder, changes, message):
    rewrite(folder, **changes)
    with pytest.raises(FormatError, match=rf"adapter_config.json' .*{message}") as caught:
        load.adapter(folder)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "targets", ["(a+)+$", "(.*)*q_proj" + "x" * 100, ["m.q_proj"], ["q_proj", "unused"], None, "("]
)
def test_patterns_of_targets_are_not_run(folder, targets):
    rewrite(folder, target_modules=targets)
    begun = time.process_time()
    found = load.adapter(folder)
    assert found.lora.targets == ("q_proj", "*.q_proj")
    assert time.process_time() - begun < 2


def test_names_of_tensors_are_no_patterns(tmp_path):
    learned = {
        "m.*.lora_A.weight": np.ones((2, 8), np.float32),
        "m.*.lora_B.weight": np.ones((8, 2), np.float32),
    }
    load.save_adapter(tmp_path, learned, nn.LoRA(rank=2, alpha=4.0))
    lora = load.adapter(tmp_path).lora
    assert isinstance(lora.linear("*", 4, 4), nn.linear.LoRALinear)
    assert not isinstance(lora.linear("k_proj", 4, 4), nn.linear.LoRALinear)
