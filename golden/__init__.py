"""Golden models of the hardware, written from the specification."""
