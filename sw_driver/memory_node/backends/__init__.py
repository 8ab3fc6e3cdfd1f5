"""Networks of memory-nodes: golden models and Verilated RTL."""
