"""The link of a memory-node: flits over a wire that loses and corrupts, in order and unharmed."""
