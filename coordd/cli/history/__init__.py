"""`coordd history`: what journals tell without a daemon.

The judging is in coordd/history/proof; here are the options and the output.
"""
