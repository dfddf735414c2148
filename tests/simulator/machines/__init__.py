"""The parts of a world: buses, daemons, disks, runners, ledgers."""
