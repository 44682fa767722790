"""Low-rank fine-tuning (LoRA): teach a language model a new subject by training a few small matrices beside its own.

    python examples/finetune_lora.py                          a small model of Shakespeare's plays is made first
    python examples/finetune_lora.py --model FOLDER           a Llama, Qwen, Gemma, ... as HuggingFace saves it
    python examples/finetune_lora.py --text FILE --save DIR   another subject; where to keep what was learned

The model's own weights stay as they are. What is learned is a folder of its own that PEFT reads too, and weighs a few per cent.
"""

import argparse
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np

from darner import data, load, models, nn, optim, text, train

WORDS = {
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "sky": ["rain", "snow", "fog", "sun", "clouds", "hail", "drizzle", "sleet"],
    "place": ["in the hills", "by the sea", "in the south", "in the valleys", "near the lakes"],
    "wind": ["no wind", "a light breeze", "wind from the west", "a storm at night"],
}


def weather(lines, seed=0):
    """Forecasts, which are no subject of Shakespeare's."""
    rng = np.random.default_rng(seed)
    rows = ({name: rng.choice(words) for name, words in WORDS.items()} for _ in range(lines))
    return "".join("{day}: {sky} {place}, then {wind}.\n".format(**row) for row in rows)


def make_model(folder, steps):
    """A small Llama that has learned Shakespeare's plays by the character."""
    plays = data.shakespeare()
    vocabulary = data.CharVocabulary.from_text(plays)
    vocabulary.save(folder / "characters.json")
    config = {"model_type": "llama", "vocab_size": len(vocabulary), "hidden_size": 96}
    config |= {"intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = models.from_config({**config, "max_position_embeddings": 256})
    source = data.TokenWindows(vocabulary.encode(plays), length=128, batch=16)
    optimizer = optim.AdamW(5e-3, schedule=optim.cosine(steps), clip_norm=1.0)
    graph = model.training_graph(batch=16, length=128)
    with train.Trainer(graph, source, optimizer=optimizer, steps=steps) as trainer:
        print(f"the base model's loss is {trainer.train().losses[-1]:.2f}, after {steps} steps")
        load.save(folder, model.config.to_hf(), trainer.session.parameters(), tied=model.tied)


def vocabulary_of(folder):
    """The folder's tokenizer; the model that is made here has one of characters."""
    characters = folder / "characters.json"
    if characters.exists():
        return data.CharVocabulary.load(characters)
    return text.Tokenizer.from_folder(folder)


def written(base, session, vocabulary, options):
    """What the model makes of the prompt."""
    with closing(text.Generator(base.model, session, vocabulary)) as generator:
        sampling = text.Sampling(temperature=0.5, seed=1)
        found = generator.generate(options.prompt, max_new_tokens=options.tokens, sampling=sampling)
    return (options.prompt + found.text).strip()


def main():
    parser = argparse.ArgumentParser(description="Fine-tune a language model by low-rank changes.")
    parser.add_argument("--model", metavar="FOLDER", type=Path, help="of a causal language model")
    parser.add_argument("--text", metavar="FILE", type=Path, help="what to learn")
    parser.add_argument("--save", metavar="FOLDER", type=Path, help="for the adapter")
    parser.add_argument("--prompt", default="Friday: ")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--base-steps", type=int, default=300, help="of the model made here")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=110, help="to write before and after")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or Path(scratch)
        if options.model is None:
            print("no --model: making a small one of Shakespeare's plays")
            make_model(folder, options.base_steps)
        vocabulary = vocabulary_of(folder)
        subject = options.text.read_text(encoding="utf-8") if options.text else weather(2000)
        source = data.TokenWindows(vocabulary.encode(subject), options.length, options.batch)

        lora = nn.LoRA(rank=options.rank, alpha=2.0 * options.rank, targets=("*_proj", "*c_attn"))
        base = load.pretrained(folder, linear=lora.linear)
        sizes = {"batch": options.batch, "length": options.length}
        frozen = lora.frozen(base.model.training_graph(**sizes))
        session = base.training_session(
            **sizes, optimizer=optim.AdamW(1e-2, multipliers=frozen, clip_norm=1.0)
        )
        with session:
            changed = [name for name in session.parameters() if name not in frozen]
            learned = sum(session.param_size(name) for name in changed)
            kept = sum(session.param_size(name) for name in frozen)
            print(f"{learned:,} numbers are trained beside {kept:,} that stay as they are")
            print(f"\nbefore:\n{written(base, session, vocabulary, options)}\n")
            with train.Trainer(session, source, steps=options.steps) as trainer:
                losses = trainer.train().losses
            print(
                f"loss {losses[0]:.2f} before, {np.mean(losses[-5:]):.2f} after {options.steps} steps"
            )
            target = options.save or Path(scratch, "adapter")
            files = load.save_adapter(target, session, lora, base=str(folder))
            print(f"{target}: {sum(path.stat().st_size for path in files) / 1e3:.0f} kB")

        # What a later program does: the model as it was, and the changes from their own folder.
        adapter = load.adapter(target)
        tuned = load.pretrained(adapter.base, linear=adapter.lora.linear)
        with tuned.inference_session(batch=1, length=options.length) as session:
            adapter.load(session)
            print(
                f"\nafter, with the adapter read again:\n{written(tuned, session, vocabulary, options)}"
            )


if __name__ == "__main__":
    main()
