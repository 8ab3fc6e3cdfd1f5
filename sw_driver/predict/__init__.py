"""Predictors of the time that the simulated hardware takes, from models at the grain of bursts."""
