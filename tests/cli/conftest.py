"""Small models in folders, as transformers saves them."""

import pytest
import tokenizers
import torch

from darner.cli import main

CHARACTERS = [chr(code) for code in range(32, 123)]
TEMPLATE = (
    "{%- for message in messages %}{{- message.role[0] + ':' + message.content + ';' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- 'a:' }}{%- endif %}"
)


def tokenizer_of(folder, template=None, **specials):
    """A tokenizer of single characters, saved to a folder."""
    import transformers

    words = ["[PAD]", "[END]", *CHARACTERS]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[PAD]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="[END]", pad_token="[PAD]", **specials
    )
    if template is not None:
        fast.chat_template = template
    fast.save_pretrained(folder)
    return len(words)


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A folder, and the model of transformers that it was saved from."""
    import transformers

    folder = tmp_path_factory.mktemp("llama")
    size = tokenizer_of(folder, TEMPLATE)
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    peer = transformers.LlamaForCausalLM(config).eval()
    for value in peer.parameters():  # larger, so that texts are not one token repeated
        value.data.mul_(3.0)
    peer.save_pretrained(folder)
    return folder, peer


def continued(peer, text, count):
    """What transformers writes after a text, greedily."""
    ids = torch.tensor([[CHARACTERS.index(letter) + 2 for letter in text]])
    with torch.no_grad():
        whole = peer.generate(ids, max_new_tokens=count, do_sample=False)[0].tolist()
    found = whole[len(text) :]
    found = found[: found.index(1)] if 1 in found else found
    return "".join(CHARACTERS[token - 2] for token in found if token > 1)


@pytest.fixture
def run(capsys):
    """The command: its exit code, what it printed, and what it said besides."""

    def call(*argv):
        code = main([str(one) for one in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
