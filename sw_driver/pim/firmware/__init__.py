"""Firmware of the programmable PIM's cores: its C sources, and an image built from them."""
