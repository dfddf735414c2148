"""What must hold in a world of the simulator, and the excuses that a world may have."""
