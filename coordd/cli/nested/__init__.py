"""Commands that packages bring, nested into coordctl and coordd by entry points.

Not here: the commands of coordd itself.
"""
