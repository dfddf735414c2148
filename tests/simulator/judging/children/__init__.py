"""Judges of children: of what follows the ends of their parents, and what people do to them."""
