"""Pooling and its gradients on a GPU, a thread for each element: ``template``."""
