"""Reads the files of Kerberos that Spark will use: keytabs and ticket caches. It says what is wrong before a launch.

No ticket is fetched or renewed here, and no KDC is asked: that is Spark's and the site's business.
"""
