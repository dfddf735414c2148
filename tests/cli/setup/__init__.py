"""`coordd init`: the files that it writes."""
