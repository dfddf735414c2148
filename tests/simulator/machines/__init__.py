"""What a world is made of: buses, daemons, disks, runners, ledgers."""
