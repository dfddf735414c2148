"""What makes a Spark driver on this machine start sooner.

Here belong class archives of the Java machine: where they lie, for which Spark and Java, who may have written them.
When one is made, and how often it is tried, belongs to services/faststart.
"""
