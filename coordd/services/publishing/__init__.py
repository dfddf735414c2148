"""Messages of other processes: recorded as runs, handed to the node's connections, listed while they wait.

The program of such a run is `coordd/outcomes/message.py`; what connects to brokers is `coordd/adapters/publishing`.
"""
