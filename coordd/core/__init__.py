"""The pure core: it decides, the shell acts.

Nothing here awaits, reads a clock, draws a random number, logs or touches a file.
Time, randomness and answers come in as arguments; that is what lets tests/simulator run this very code.
"""
