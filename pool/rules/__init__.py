"""The rules: pure."""
