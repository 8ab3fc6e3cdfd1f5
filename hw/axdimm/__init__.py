"""AXDIMM: a memory module with an update kernel at each DRAM channel."""
