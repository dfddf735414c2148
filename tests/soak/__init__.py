"""The soak: real clusters under a steady load, and the rule by which their figures are judged."""
