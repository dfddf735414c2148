"""The judge of sweeps with a cursor."""
