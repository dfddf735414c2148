"""Judges of what follows what people do to parents."""
