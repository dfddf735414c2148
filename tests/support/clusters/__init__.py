"""Cluster managers that speak the real wire format, and misbehave on request: YARN's ResourceManager, Kubernetes,
Standalone.

Nothing runs on them. A test says what becomes of an application. A server for real programs belongs in servers/.
"""
