"""The same work beside the peers: ``python -m bench.peers``, which ``make bench`` runs."""
