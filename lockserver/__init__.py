"""Which engine may be awake: the lock, its server, its client (`lockserver.client`) and its commands."""
