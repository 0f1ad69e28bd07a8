"""Pure: which tree has which bytes."""
