"""What guards jobs, on real daemons: breakers and checks."""
