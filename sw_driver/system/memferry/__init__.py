"""MemFerry: each layer's parameters are copied to a GPU, or read by it from the host's memory.

Yao et al. A GPU that reads what it computes on from the host's memory ("DHA") leaves its link to
the parameters of other layers. A profile says what each layer takes in each way, and a planner
chooses the way of each.
"""
