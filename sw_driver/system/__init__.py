"""Models of whole systems: what happens when on a machine, under a policy."""
