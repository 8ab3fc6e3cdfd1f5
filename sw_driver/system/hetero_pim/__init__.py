"""Training steps on a CPU, a programmable core and pools of multipliers and adders in a stack of
memory, after Liu et al., *Processing-in-Memory for Energy-efficient Neural Network Training*."""
