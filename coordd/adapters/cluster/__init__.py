"""Cluster managers: the applications of YARN, Kubernetes and Standalone, looked up, and ended on request.

A file for each way in. Every call is blocking and has a deadline. The tracker of an attempt loads these files without
site-packages; the daemon calls them from a thread. The decision about an application belongs in
coordd/core/jobs/applications.py.
"""
