"""Tests of the orphans on both sides; tests/system/applications has the look-ups with real daemons."""
