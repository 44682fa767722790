"""A small classifier with dropout, and sources of batches that can be resumed."""

import queue
import threading

import numpy as np

import darner
from darner import optim, train

FEATURES, CLASSES, BATCH = 5, 3, 4


def classifier(batch=BATCH, dropout=0.2):
    g = darner.Graph("classifier")
    x, labels = g.input("x", (batch, FEATURES)), g.input("labels", (batch,), "i32")
    h = x @ g.parameter("in.weight", (FEATURES, 11), init="normal(0.5)")
    h = (h + g.parameter("in.bias", (11,))).tanh()
    if dropout:
        h = h.dropout(dropout)
    logits = h.matmul(g.parameter("out.weight", (11, CLASSES), init="normal(0.5)"), label="logits")
    g.set_outputs([g.cross_entropy_loss(logits, labels, label="loss"), logits])
    return g


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    rule = np.random.default_rng(99).normal(size=(FEATURES, CLASSES))
    return {"x": x, "labels": (x @ rule).argmax(-1).astype(np.int32)}


def listed(count, seed=0, batch=BATCH):
    """Batches as a plain list."""
    data = examples(count * batch, seed)
    return [{k: v[i : i + batch] for k, v in data.items()} for i in range(0, count * batch, batch)]


class Shuffled:
    """Batches in an order of their own in each epoch: the protocol of ``darner.data.Batches``, and no more.

    With ``ahead`` a thread makes that many batches before they are asked for.
    """

    def __init__(self, data, batch=BATCH, seed=0, ahead=0, before=None):
        self.data, self.batch, self.seed, self.ahead = data, batch, seed, ahead
        self.before = before or (lambda: None)
        self.epoch = self.position = 0

    def __len__(self):
        return len(self.data["x"]) // self.batch

    def _made(self, epoch, start):
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.data["x"]))
        for i in range(start, len(self)):
            rows = order[i * self.batch : (i + 1) * self.batch]
            yield {name: values[rows] for name, values in self.data.items()}

    def __iter__(self):
        made = self._made(self.epoch, self.position)
        for batch in self._fetched(made) if self.ahead else made:
            self.before()
            self.position += 1
            yield batch
        self.epoch, self.position = self.epoch + 1, 0

    def _fetched(self, made):
        ready, over = queue.Queue(self.ahead), object()
        gone = threading.Event()

        def fill():
            for item in [*made, over]:
                while not gone.is_set():
                    try:
                        ready.put(item, timeout=0.05)
                        break
                    except queue.Full:
                        continue

        worker = threading.Thread(target=fill, daemon=True)
        worker.start()
        try:
            while (item := ready.get()) is not over:
                yield item
        finally:
            gone.set()
            worker.join()

    def state(self):
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed}

    def restore(self, state):
        self.epoch, self.position, self.seed = state["epoch"], state["position"], state["seed"]


OPTIMIZER = optim.AdamW(
    0.02, clip_norm=0.5, schedule=optim.warmup(3) >> optim.cosine(30, end=0.1), weight_decay=0.1
)


def trainer(batches=None, *, graph=None, **options):
    """A trainer of the classifier on one thread, quiet unless a test asks."""
    chosen = {"optimizer": OPTIMIZER, "threads": 1, "seed": 3, "progress": False, **options}
    if "epochs" not in chosen:
        chosen.setdefault("steps", 12)
    batches = listed(7) if batches is None else batches
    return train.Trainer(graph or classifier(), batches, **chosen)


def everything(session):
    """All that a session keeps, as bytes that compare bit by bit."""
    return {k: v.tobytes() for k, v in {**session.parameters(), **session.state()}.items()}
