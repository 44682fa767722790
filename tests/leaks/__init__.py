"""Sessions that come and go leave nothing behind."""
