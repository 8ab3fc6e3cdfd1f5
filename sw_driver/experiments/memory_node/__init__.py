"""Experiments on memory-nodes: bandwidth, compression."""
