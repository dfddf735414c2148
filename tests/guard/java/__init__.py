"""coordd.Guard of deploy/java: what a driver in Java asks with. The same fakes as for guard.py, and the real listener.

A new test of the Java file belongs here. What guard.py alone can do (publication of files) does not.
"""
