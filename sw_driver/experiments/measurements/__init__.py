"""Published measurements of training steps, and their comparison with the models of this package.

``training.csv`` has the shipped rows. A row is a configuration, a metric with its value, and the
source. An empty field or ``-`` is unknown.
"""
