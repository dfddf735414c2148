"""Fuzzing of what drivers on other machines send."""
