"""A device in software behind the calls of the driver: memory is the host's, and a launch runs code that was compiled for its processor."""
