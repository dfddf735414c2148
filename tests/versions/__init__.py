"""Two versions in one cluster: the version before is an archive in this folder."""
