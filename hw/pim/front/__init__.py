"""The front: checks a descriptor and its plan, and puts the work as banks take it."""
