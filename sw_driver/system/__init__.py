"""Models of whole systems: machines that run training steps under a policy."""
