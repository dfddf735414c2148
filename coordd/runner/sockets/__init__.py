"""The sockets that a runner listens on: the daemon's commands (commands.py), and the program's questions (guard.py).
The program asks whether its attempt still is the owner, and whether it may publish.

Nobody waits for these at a launch, so they are loaded late. A fault of a socket never ends a run.
"""
