"""Path to the stack's memory: ports, the switch from ports to vaults, and the host's side."""
