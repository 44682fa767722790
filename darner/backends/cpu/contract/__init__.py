"""Matrix products on the CPU: packed panels, register tiles, epilogues.

``template`` chooses the form of a product (``product`` reads it from the body, ``plan`` cuts it): ``driver`` is the loop nest, ``panel_tiles`` its innermost part, ``blocks`` and ``shared`` where A does not
fit the cache, ``queued`` where threads claim panels, ``strip`` for short sums, ``dots`` and ``vector`` for few rows.
Where B is decoded as it is used, ``decoded_plan`` chooses: ``decoded_rows`` for few rows, ``decoded_tiles`` for more, ``decoded`` for panels. ``tile`` is the micro-kernel, ``pack`` and ``panel`` feed it.
"""
