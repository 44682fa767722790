"""The command ``darner``."""
