"""Link of a memory-node: it delivers flits intact and in order over a lossy wire."""
