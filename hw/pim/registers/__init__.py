"""The pool's registers on AXI4-Lite, and their map, from which driver and docs are made."""
