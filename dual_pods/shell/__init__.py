"""What touches the world."""
