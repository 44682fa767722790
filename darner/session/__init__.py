"""Sessions: what a user runs, trains and saves."""
