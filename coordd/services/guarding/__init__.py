"""The guard listener: drivers on other machines ask whether they own their run, and commit it.

answering.py has the answers, by the ledger's rows; listener.py the connections; held.py what commands of `coordd exec`
ask through the control socket. What runs on this machine asks its
runner instead (coordd/runner/sockets/guard.py). The driver's side of both is coordd/guard.py.
"""
