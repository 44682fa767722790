"""Search by meaning: sentences become vectors, and the nearest ones answer a question.

    python examples/embed_search.py                                      with a small model made here
    python examples/embed_search.py --model FOLDER "how tall is it?"     with MiniLM or another BERT from HuggingFace
    python examples/embed_search.py --model FOLDER --sentences FILE ...  over the lines of a file

`pip install 'darner[hub]'` and `--model sentence-transformers/all-MiniLM-L6-v2` download one.
"""

import argparse
from pathlib import Path

import numpy as np

import darner
from darner import load, models, text

SENTENCES = """The mountain is covered with snow until June.
A recipe for bread needs flour, water, salt and time.
The train to the coast leaves at seven in the morning.
Children learn to read by being read to.
The orchestra plays a symphony by Beethoven tonight.
Water boils at a lower temperature on a high mountain.
The new phone has a better camera and a larger battery.
The ferry across the lake does not run in a storm.""".splitlines()
QUESTIONS = ["at what temperature does water boil?", "when does the train leave?", "bread recipe"]


class Words:
    """A vocabulary of whole words, for the model that is made here."""

    def __init__(self, sentences):
        words = sorted({word for line in sentences for word in self.split(line)})
        self.ids = {word: 1 + i for i, word in enumerate(words)}

    @staticmethod
    def split(line):
        return "".join(c if c.isalnum() else " " for c in line.lower()).split()

    def encode(self, line):
        return [self.ids[word] for word in self.split(line)] or [0]


def opened(options, sentences):
    """The model, a vocabulary, and a function from a graph to a session with the weights."""
    if options.model:
        found = load.pretrained(options.model)
        vocabulary = text.Tokenizer.from_folder(found.folder)
        return found.model, vocabulary, lambda graph: found.session(graph, mode="infer")
    print(
        "no --model: a small BERT with random weights is made here. It has learned nothing, so that it finds\n"
        "sentences that share words with the question; a trained one finds those that mean the same."
    )
    vocabulary = Words(sentences)
    config = {"model_type": "bert", "vocab_size": 1 + len(vocabulary.ids), "hidden_size": 64}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    model = models.from_config({**config, "initializer_range": 0.05})
    return model, vocabulary, lambda graph: darner.build_inference_session(graph, seed=0)


def embeddings(model, make_session, rows):
    """A vector of length 1 for each row of tokens. Rows are filled up to one length; the mask says how far each goes."""
    length = max(map(len, rows))
    tokens, mask = np.zeros((2, len(rows), length), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        mask[i, : len(row)] = 1
    with make_session(model.inference_graph(batch=len(rows), length=length)) as session:
        inputs = {"tokens": tokens, "mask": mask, "types": np.zeros_like(tokens)}
        return session.run(inputs)["embedding"]


def main():
    parser = argparse.ArgumentParser(description="Find sentences by meaning.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--model", metavar="FOLDER", help="of a BERT, or its name on the hub")
    parser.add_argument("--sentences", metavar="FILE", type=Path, help="one in each line")
    parser.add_argument("--best", type=int, default=2, help="how many to show")
    options = parser.parse_args()
    sentences = SENTENCES
    if options.sentences:
        lines = options.sentences.read_text(encoding="utf-8").splitlines()
        sentences = [line for line in lines if line.strip()]

    model, vocabulary, make_session = opened(options, [*sentences, *options.questions])
    rows = [vocabulary.encode(line) for line in [*sentences, *options.questions]]
    vectors = embeddings(model, make_session, rows)
    known, asked = vectors[: len(sentences)], vectors[len(sentences) :]
    print(f"{len(sentences)} sentences as vectors of {vectors.shape[1]} numbers")
    for question, scores in zip(options.questions, asked @ known.T, strict=True):
        print(f"\n{question}")
        for i in np.argsort(-scores)[: options.best]:
            print(f"  {scores[i]:.3f}  {sentences[i]}")


if __name__ == "__main__":
    main()
