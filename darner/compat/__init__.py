"""The names and forms of other systems (Meganeura and RLX), said in darner's own words.

The core has one name for each thing. Whatever another system calls otherwise, or gives in another form, is a builder here: a graph
method that calls the core's. Nothing below uses them; they are methods of every graph, and loaded when one is asked for.

    forms        how a row of a table becomes a builder
    names        other names, and shorthands of two or three ops
    kinds        ops named by a kind: ``g.activation(Activation.Silu, x)``
    attention    heads side by side in the last axis, masks by kind
    flat         images along one axis, with their sizes as a row of integers
    gradients    derivatives as ops of their own
    scans        loops of one carry over a body that is a graph
    fusions      passes that apply one fusion wherever it is possible; loaded when one is asked for
    training     how a trainer is set up; loaded by ``darner.train``

Methods of classes (``Session.read_param``, ``Weights.tensor_f32``) stand in their classes, where editors and type checkers find them.
"""
