"""The stages that a graph goes through, as values: ``module`` has a graph together with its stage, ``methods`` makes modules of graphs and graphs of modules. Begin with ``module``."""
