"""What makes a Spark driver on this machine start sooner.

Here belong class archives of the Java machine (where they lie, for which Spark and Java, who may have written them),
and what starts clients and prepared servers of Spark Connect. When that is done belongs to services/faststart.
"""
