"""The warm parent: a process with the runner's code loaded, which forks watchers, and these fork runners.

Here is what only that process does before a forked child becomes a watcher. What a watcher or a runner does stays in
coordd/runner, which works without this folder. The daemon's side is coordd/adapters/launch/warm.py.
"""
