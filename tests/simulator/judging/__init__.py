"""The properties that every world of the simulator must have, and the excuses for exceptions."""
