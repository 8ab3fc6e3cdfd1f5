"""Memory node: memory behind links to several devices."""
