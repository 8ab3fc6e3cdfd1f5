"""Memory-node, written from docs/memory-node-spec.md alone."""
