"""Drivers in another network namespace ask the guard listeners of daemons."""
