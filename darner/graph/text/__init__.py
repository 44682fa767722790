"""A graph outside of memory.

``dump`` writes the text form and makes the hash of it, ``parse`` reads it back, ``json`` does both in JSON. ``attributes`` writes single attributes, as keys and in dumped
programs; ``annotated`` is the dump for people. Begin with ``dump``.
"""
