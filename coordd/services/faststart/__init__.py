"""When what makes Spark drivers start sooner is prepared, and what people are told of it.

Here belongs the decision when a class archive is tried, made and given up. What such a file is, and who may have
written it, belongs to adapters/faststart.
"""
