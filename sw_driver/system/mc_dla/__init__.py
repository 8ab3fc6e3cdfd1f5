"""The systems of Kwon and Rhu: device-nodes, memory-nodes, and what is trained on them."""
