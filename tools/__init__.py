"""Programs beside the house: each runs on its own, from a checkout."""
