"""The process that holds one lease and one spark-submit, and the small watcher that guards it.

    daemon -> watcher -> runner -> program (spark-submit, or any command) -> its tree

Whichever of them is killed or stopped, nothing of the tree outlives the lease: the runner ends the program when
the lease cannot be renewed, the watcher ends everything when the runner is gone or has stopped moving, and the
runner replaces a watcher that is gone. coordd/core/attempt.py decides; this package only obeys.

Everything that is loaded before the program is executed imports next to nothing: the start of a bare Python is
most of the time from trigger to exec. That is why some modules here are those with a leading underscore, which
signal, socket and ctypes wrap at 2 to 9 ms each.
"""
