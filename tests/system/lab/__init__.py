"""What the tests of real systems are made of: clusters, machines, disks, processes."""
