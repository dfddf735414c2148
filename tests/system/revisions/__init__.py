"""Published revisions of the job definitions on real nodes."""
