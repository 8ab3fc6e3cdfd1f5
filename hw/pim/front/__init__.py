"""Front of the pool: checks a descriptor and its plan, and converts it to the banks' form."""
