"""Chains of small products as one kernel whose blocks stay: what a step of decoding is.

    roles      which kernels of a plan can be in a chain, and as what
    chain      the kernels of a plan that are one, cut into stages
    exchange   how blocks hand each other values
    code       what all code of a chain is written with
    light      what every block computes for itself
    product    products of a few rows
    attention  attention of a few queries, in parts
    kernel     the loop over stages
    running    a chain in a program: its table and its memory

Begin with ``chain``; ``running`` decides whether a plan has one.
"""
