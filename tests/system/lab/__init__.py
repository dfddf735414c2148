"""The parts of the tests of real systems: clusters, machines, disks, processes."""
