"""How fast the simulation is: measured through the driver, and beside other simulations."""
