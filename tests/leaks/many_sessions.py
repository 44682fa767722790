"""Makes and drops sessions, and prints what the process holds on the way: one JSON record for each sample.

It runs in a process of its own, where nothing else takes memory. Arguments: how many sessions before the first sample, how
many after it, and a folder for compiled code and checkpoints.
"""

import gc
import json
import sys

from tests.leaks import models, process


class Owner:
    """Holds a session and itself: only the collector of cycles can free it."""

    def __init__(self, session) -> None:
        self.session = session
        self.own = self


def one(number: int, folder: str) -> None:
    """Build, use and drop the sessions of one turn; each turn of twelve is different."""
    options = {
        "threads": 1 + number % 3,
        # Some are compiled, and some saturated: both take long.
        "cache": None if number % 12 == 5 else folder,
        "level": 2 if number % 12 == 7 else 1,
    }
    trained = models.training(**options)
    models.learned(trained, 2)
    if number % 4 == 0:
        trained.save_checkpoint(f"{folder}/checkpoint")
        trained.load_checkpoint(f"{folder}/checkpoint")
    if number % 4 == 1:
        trained.set_profiling(True)
        trained.step()
        trained.trace_dispatches()
    if number % 4 == 2:
        trained.set_adam(0.5)
        trained.set_lr_multiplier("w", 0.5)
    predicts = models.inference(**options, **({"share": trained} if number % 2 else {}))
    predicts.run(models.values())
    if number % 3 == 0:
        trained.close()
        predicts.close()
    elif number % 3 == 1:
        Owner(trained), Owner(predicts)
        gc.collect()


def sample() -> dict[str, int]:
    """What the process holds now."""
    return {
        "resident": process.resident(),
        "reserved": process.reserved(),
        "threads": process.threads(),
        "workers": len(process.workers()),
        "descriptors": process.descriptors(),
    }


def main() -> None:
    first, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for number in range(first):
        one(number, folder)
    sys.stdout.write(json.dumps(sample()) + "\n")
    for number in range(count):
        one(number, folder)
    # A worker that was joined may still be listed for a moment.
    process.eventually(lambda: not process.workers())
    sys.stdout.write(json.dumps(sample()) + "\n")


if __name__ == "__main__":
    main()
