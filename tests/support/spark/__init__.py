"""Real Spark, for several rooms of tests."""
