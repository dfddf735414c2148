"""Every bus, and what is special about each."""
