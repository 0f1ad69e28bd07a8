"""What is decided about leases, and nothing that touches the world. Pure."""
