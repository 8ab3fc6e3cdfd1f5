"""Training steps on a CPU beside a memory stack with a programmable core and pools of units.

Units are multipliers and adders. After Liu et al., *Processing-in-Memory for Energy-efficient
Neural Network Training*.
"""
