"""`fleetctl`, for people and scripts."""
