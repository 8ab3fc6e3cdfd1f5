"""What a work is: its descriptor, the forms in which it passes through the pool, its status."""
