"""From a trigger to its run: how soon a program is executed, and how many calls a node accepts."""
