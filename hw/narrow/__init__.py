"""Numbers of fewer bits than FP32's in memory: BF16 and codes of eight bits."""
