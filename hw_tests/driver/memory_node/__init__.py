"""Tests of device-nodes with remote memory."""
