"""The multipliers and adders of a bank, in lanes, and what gives them products and sums to do."""
