"""Loops on the CPU: a step's plan, repeated inside one kernel.

``template`` writes a driver that calls the kernels of the step as often as there are steps, with addresses that advance; ``layout`` says where in scratch memory a loop
keeps what is neither operand nor result, after which kernels threads wait, and whether one thread does it all.
"""
