"""What all tests share: Hypothesis without deadlines (two cores, many processes: time says nothing here), and
signals that do what they do at a terminal, also when the tests run in the background (there Ctrl-C is ignored, and
would be by every program that a test starts and means to interrupt)."""

import signal

from hypothesis import settings

settings.register_profile("failover", deadline=None)
settings.load_profile("failover")

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
