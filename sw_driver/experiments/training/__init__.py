"""The main job: training a network whose optimizer steps the device executes."""
