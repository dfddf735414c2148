"""An error or a crash at the n-th system call of a daemon, a runner, a watcher, a held program, or a burial."""
