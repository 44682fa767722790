"""Processes that are killed, disks that are full: what is on disk stays whole."""
