"""The door: an OpenAI-compatible endpoint in front of a pair, whose clients see a pause when an engine dies."""
