"""`make arrivals`: files appear in bursts, the nodes that poll their directory are killed, and each file is one run."""
