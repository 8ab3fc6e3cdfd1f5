"""The way to the stack's memory: its port, the switch from ports to vaults, the host's side."""
