"""Tests of `coordd dev`: a cluster of real daemons in the foreground.

What belongs here starts the command itself and judges by the processes and files of this machine.
"""
