"""The Adam kernel in other simulations, for ``nearmem bench --compare``."""
