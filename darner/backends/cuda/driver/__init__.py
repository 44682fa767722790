"""NVIDIA's driver by ctypes: thin, typed, and not loaded before a device is asked for.

    library     libcuda: its functions, and every error as one that names the call
    structures  what the driver takes by address, and its numbers for things
    context     a device that is open: memory, code, streams
    stream      work in order: copies, launches, events, and graphs of them
    code        PTX to object code, object code to kernels, and launches that are prepared once

``interface`` beside this folder says what of it the rest uses; the emulator has the same.
"""
