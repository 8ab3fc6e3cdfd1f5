"""Experiments on the PIM: layers, comparison of models, training."""
