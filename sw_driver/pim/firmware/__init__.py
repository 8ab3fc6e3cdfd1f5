"""What the programmable PIM's cores run: its sources in C, and images of them."""
