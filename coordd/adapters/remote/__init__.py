"""Files elsewhere: on another disk, in HDFS, or where a site's command puts them.

Here belong the clients of such stores, one file each, and what they share. All keep one rule: a name has the whole
content or none. The choice of files, of times and of tries belongs to services/sinks.
"""
