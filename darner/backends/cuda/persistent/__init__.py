"""Chains of small products as one kernel whose blocks stay: what a step of decoding is.

    roles      which kernels of a plan can be in a chain, and as what
    facts      what is known of buffers while a chain grows
    forms      what a chain is: stages, the code that they share, and where their values are
    chain      which kernels of a plan are one
    stages     how they are cut into stages
    exchange   how blocks hand each other values
    code       what all code of a chain is written with
    light      what every block computes for itself
    product    products of a few rows: ``rows`` has what ``by_columns`` and ``by_terms`` have in common
    attention  attention of a few queries, in parts
    kernel     the loop over stages
    running    a chain in a program: its table and its memory

Begin with ``chain``; ``running`` decides whether a plan has one.
"""
