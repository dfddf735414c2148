"""When what makes Spark drivers start sooner is prepared, and what people are told of it.

Here belongs the decision when a class archive is tried, made and given up, and when a server of Spark Connect is
prepared. What these are, and who may have written them, belongs to adapters/faststart.
"""
