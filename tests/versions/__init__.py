"""Two versions in one cluster: the previous version is an archive in this folder."""
