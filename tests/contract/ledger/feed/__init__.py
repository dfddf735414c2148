"""Changes since a cursor."""
