"""Loops on the CPU: a step's plan, repeated inside one kernel.

``elements`` takes elements that know nothing of each other through all steps in registers. For any other body ``template`` writes a driver that calls the kernels of the step as
often as there are steps, with addresses that advance: of all rows together, or of rows that a thread takes for itself. ``layout`` says where in scratch memory a loop
keeps what is neither operand nor result, after which kernels threads wait, whether one thread does it all, and whether rows go apart.
"""
