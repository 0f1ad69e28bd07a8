"""Pure: who has which bytes."""
