"""What all tests share: Hypothesis without deadlines (two cores, many processes: time says nothing here)."""

from hypothesis import settings

settings.register_profile("failover", deadline=None)
settings.load_profile("failover")
