"""What people read and do on one node about another."""
