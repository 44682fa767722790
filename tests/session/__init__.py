"""Tests of sessions: building, running, saving and loading."""
