"""Single kernels beside the peers': ``python -m bench.kernels``, which ``make kernels`` runs."""
