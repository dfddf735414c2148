"""Tests of core/members: membership, the ring, the failure detector."""
