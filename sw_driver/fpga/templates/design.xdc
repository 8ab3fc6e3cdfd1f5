# Clock and reset of @@name as the top of a project, or out of context. Leave this file out if the
# design is inside another one: its clock then comes from there.

# The fabric's clock, @@mhz MHz.
create_clock -name clk -period @@period_ns [get_ports clk]

# The units' clock comes from a BUFGCE with input clk, so Vivado derives it from clk: same period,
# same edges, and every path between the two is timed. No exception belongs here.

# The reset rst is synchronous to clk and timed like data: no exception belongs here either.
