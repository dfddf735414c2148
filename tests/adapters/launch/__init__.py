"""How a run gets its unit: root's list, the question to systemd, the polkit rule."""
