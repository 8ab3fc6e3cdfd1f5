"""The systems of Kwon and Rhu: device-nodes, memory-nodes, and training on them."""
