"""Training steps in a fast and a slow memory, after Ren et al., *Sentinel: Runtime Data Management
on Heterogeneous Main Memory Systems for Deep Learning*."""
