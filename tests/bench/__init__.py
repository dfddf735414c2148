"""`make bench`: what is measured, a file a section."""
