# The fabric's clock, @@mhz MHz. The board must provide it; add the pins below.
create_clock -name clk -period @@period_ns [get_ports clk]

# The button is asynchronous and goes through two registers; the lights have no timing.
set_false_path -from [get_ports button]
set_false_path -to [get_ports {led[*]}]

# set_property -dict {PACKAGE_PIN ... IOSTANDARD ...} [get_ports clk]
# set_property -dict {PACKAGE_PIN ... IOSTANDARD ...} [get_ports button]
# set_property -dict {PACKAGE_PIN ... IOSTANDARD ...} [get_ports {led[0]}]
