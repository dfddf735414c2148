"""The pure core: it decides, the shell acts.

Nothing here awaits, reads a clock, draws a random number, logs or touches a file.
Time, randomness and answers are arguments, so tests/simulator can run this very code.
"""
