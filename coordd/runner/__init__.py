"""The process that holds one lease and one spark-submit, and the small watcher that guards it.

    daemon -> watcher -> runner -> program (spark-submit, or any command) -> its tree

If any of them is killed or stopped, no process of the tree outlives the lease. The runner ends the program when the
lease cannot be renewed. The watcher ends everything when the runner is gone or hangs. The runner replaces a watcher
that is gone. coordd/core/attempt.py decides; this package only obeys.

Modules that are loaded before the program is executed import almost nothing: the start of a bare Python is most of the
time from trigger to exec. That is why some imports have a leading underscore: signal, socket and ctypes wrap these
modules, at 2 to 9 ms each.
"""
