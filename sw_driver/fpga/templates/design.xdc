# @@name as the top of a project or out of context. Inside another design its clock comes from
# there: then leave this file out.

# The fabric's clock, @@mhz MHz.
create_clock -name clk -period @@period_ns [get_ports clk]

# The units' clock leaves a BUFGCE whose input is clk, so that Vivado derives it from clk: same
# period, same edges, and every path between the two is timed. No exception belongs here.

# The reset rst is synchronous to clk and timed like data: no exception belongs here either.
