"""MemFerry: each layer's parameters are copied to a GPU, or read by it from the host's memory.

After Yao et al. A GPU that reads parameters directly from the host's memory ("DHA") leaves time on
its link for the parameters of other layers. A profile has each layer's times in each way, and a
planner chooses the ways.
"""
