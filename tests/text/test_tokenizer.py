"""Tokenizers and chat templates of model folders, compared with transformers' own."""

import json

import pytest
import tokenizers
import transformers

from darner import ArgumentError, FormatError
from darner.text import Tokenizer

TEMPLATE = """{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant', 'system') %}
        {{- raise_exception('no such role: ' + message.role) }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " What is a graph compiler? "},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["the graph compiler reads the graph, and writes it"] * 20, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", bos_token="<|end|>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    return path


@pytest.mark.parametrize("text", ["the graph", "", "Zoë paid 5 € 🎉\n\n", "<|im_start|>user"])
def test_tokens_are_those_of_transformers_and_come_back(folder, text):
    ours = Tokenizer.from_folder(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text), special=True) == text
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("reply", [True, False])
def test_a_chat_is_the_text_that_transformers_makes(folder, reply):
    ours = Tokenizer.from_folder(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=reply)
    assert ours.chat(MESSAGES, reply=reply) == wanted
    tokens = theirs.apply_chat_template(MESSAGES, add_generation_prompt=reply, return_dict=False)
    assert ours.encode(wanted, special=False) == tokens


def test_a_template_may_refuse_and_cannot_reach_the_machine(folder):
    ours = Tokenizer.from_folder(folder)
    with pytest.raises(Exception, match="no such role: robot"):
        ours.chat([{"role": "robot", "content": ""}])
    escaping = Tokenizer(ours.inner, {}, "{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(Exception, match="unsafe"):
        escaping.chat(MESSAGES)


def test_what_ends_a_text_is_what_the_folder_says(folder, tmp_path):
    ours = Tokenizer.from_folder(folder)
    assert ours.ends == {ours.inner.token_to_id("<|im_end|>")}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert Tokenizer.from_folder(tmp_path).ends == {2, 5}


def test_a_template_of_the_older_file_is_found(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    settings = {"chat_template": [{"name": "default", "template": "hi {{ messages | length }}"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenizer.from_folder(tmp_path).chat(MESSAGES) == "hi 2"


def test_what_is_missing_or_damaged_is_told(folder, tmp_path):
    with pytest.raises(ArgumentError, match=r"there is no tokenizer\.json in"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(FormatError, match="is not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    plain = Tokenizer(Tokenizer.from_folder(folder).inner)
    with pytest.raises(ArgumentError, match="has no chat template"):
        plain.chat(MESSAGES)
