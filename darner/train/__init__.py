"""Training: steps, validation, checkpoints, logs and a live display."""
