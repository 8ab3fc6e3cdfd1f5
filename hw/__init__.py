"""Near-memory training hardware in Amaranth."""
