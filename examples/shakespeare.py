"""A small Llama learns to write like Shakespeare, letter by letter: about a minute on two cores.

python examples/shakespeare.py                   train, save, write
python examples/shakespeare.py --resume          go on where it was stopped
python examples/shakespeare.py --sample "ROMEO:" write with what was learned
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from darner import data, load, models, optim, text, train

LENGTH = 256
OUT = Path("build/shakespeare")
PYTHON = os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else "python"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--sample", metavar="PROMPT", help="only write, with what was learned")
    parser.add_argument("--letters", type=int, default=300, help="how many to write")
    asked = parser.parse_args()
    if asked.sample is not None:
        model = load.pretrained(asked.out / "model")
        vocabulary = data.CharVocabulary.load(asked.out / "model" / "vocabulary.json")
        owner = model.inference_session(batch=1, length=1)
        write(text.Generator(model.model, owner, vocabulary), asked.sample, asked.letters)
        return 0

    if asked.out == OUT and OUT.exists() and not asked.resume:
        print(f"an earlier run in {OUT} makes room for this one")
        shutil.rmtree(OUT)
    play = data.shakespeare()
    vocabulary = data.CharVocabulary.from_text(play)
    tokens = vocabulary.encode(play)
    kept = len(tokens) * 9 // 10
    lessons = data.TokenWindows(tokens[:kept], length=LENGTH, batch=asked.batch, seed=1)
    unseen = data.TokenWindows(
        tokens[kept : kept + 40 * asked.batch * LENGTH + 1],
        length=LENGTH,
        batch=asked.batch,
        order="sequential",
    )
    model = models.from_config(
        {
            "model_type": "llama",
            "vocab_size": len(vocabulary),
            "hidden_size": asked.width,
            "intermediate_size": 3 * asked.width,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
        }
    )
    warmup = min(100, asked.steps // 10)
    trainer = train.Trainer(
        model.training_graph(batch=asked.batch, length=LENGTH),
        lessons,
        optimizer=optim.AdamW(
            3e-3,
            beta2=0.99,
            weight_decay=0.1,
            decay_filter=optim.matrices_only,
            clip_norm=1.0,
            schedule=optim.linear_warmup(warmup) >> optim.cosine(asked.steps - warmup, end=0.05),
        ),
        steps=asked.steps,
        validation=unseen,
        validate_every=max(asked.steps // 6, 1),
        checkpoint=asked.out,
        checkpoint_every=max(asked.steps // 3, 1),
        log=True,
        resume=asked.resume,
        resume_hint=f"{PYTHON} {sys.argv[0]} --resume",
        progress=True,
        log_interval=50,
        seed=1,
    )
    parameters = sum(int(value.size) for value in trainer.session.parameters().values())
    print(f"a Llama of {parameters:,} parameters reads {kept:,} letters of Shakespeare")
    with trainer:
        history = trainer.train()
        folder = asked.out / "model"
        load.save(folder, model.config.to_hf(), dict(trainer.session.parameters()), tied=model.tied)
        vocabulary.save(folder / "vocabulary.json")
        found = history.validations[-1].values["loss"]
        print(f"\nloss on text that it never saw: {found:.3f}. It writes:\n")
        write(text.Generator(model, trainer.session, vocabulary), "ROMEO:", asked.letters)
    print(f"\nthe curve:      {asked.out / 'curve.svg'}")
    print(f"the model:      {folder}")
    print("now try:")
    print(f'  {PYTHON} {sys.argv[0]} --sample "To be, or not to be"')
    print(f'  {PYTHON} -m darner.cli generate {folder} "JULIET:" --temperature 0.8')
    return 0


def write(generator: text.Generator, prompt: str, letters: int) -> None:
    """Show a text as it is written."""
    sampling = text.Sampling(temperature=0.8, top_k=40, seed=2)
    print(prompt, end="", flush=True)
    for piece in generator.stream(prompt, max_new_tokens=letters, sampling=sampling):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except train.TrainingInterrupted as stopped:
        print(stopped)
        sys.exit(130)
