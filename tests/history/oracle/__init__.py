"""`make oracle`: journals in every kind of disorder, through the history pipeline and through plain Python.

``events`` makes what nodes write, ``delivery`` brings it in segments, late, twice, cut and spoilt. ``reference`` and
``findings`` say in plain Python what the tables must hold, from the same files; ``comparing`` holds the two against
each other, row by row and field by field. ``celery_state`` folds the same events by Celery's own rules.
"""
