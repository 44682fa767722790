"""Batches of examples for training: arrays, files, texts, pictures; in an order that can be resumed."""
