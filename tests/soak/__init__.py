"""The soak: real clusters under a steady load, and the rule that judges their figures."""
