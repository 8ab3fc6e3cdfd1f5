"""Training steps in a fast and a slow memory, with the Sentinel runtime.

After Ren et al., *Sentinel: Runtime Data Management on Heterogeneous Main Memory Systems for Deep
Learning*.
"""
