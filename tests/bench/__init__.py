"""`make bench`: one file for each section of measurements."""
