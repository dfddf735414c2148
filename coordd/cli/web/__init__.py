"""coordctl web: pages for people, in a process of the person who starts it.

door.py says who may come in, http.py speaks HTTP, source.py asks the daemon, models.py and drawing.py make what a page
shows, actions.py changes things, and site.py joins them.
"""
