"""Control and status registers from SystemRDL register maps."""
