"""The Debian package on a bare Debian with a real systemd: installed, upgraded, downgraded, purged; and three hosts."""
