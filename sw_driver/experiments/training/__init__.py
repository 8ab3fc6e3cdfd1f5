"""Training of networks with the optimizer steps on the device."""
