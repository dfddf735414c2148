"""The pure core: each room of coordd/core has its tests here, in a room of the same name."""
