"""Kernel that applies update rules to tensors in memory."""
