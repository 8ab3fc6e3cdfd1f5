"""The Adam kernel in other simulations, for ``make bench``."""
