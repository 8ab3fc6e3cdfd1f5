"""Small building blocks that all rooms share."""
