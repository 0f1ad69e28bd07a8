"""The exit codes that mean the same in several programs. What only one command means by a number stands beside that
command. Pure.

The numbers are those of BSD's sysexits.h and of the shells, so that a script can tell them from a command's own.
"""

EX_USAGE = 64
"""The arguments are wrong: another start would change nothing."""
EX_OTHER_WEIGHTS = 65
"""An engine finds the weights of another model, or of another version: another start would, too."""
EX_REFUSED = 69
"""What was asked for is refused, or what grants it can't be reached."""
EX_LOST = 70
"""The lock is lost, and with it the right to go on."""
EX_NOT_IN_TIME = 75
"""It wasn't granted in time."""
EX_FAILS_ALIKE = 78
"""Each of several starts has failed with the same words, so no further one was tried."""
EX_CANT_RUN = 126
"""The command that was to be run can't be."""
EX_INTERRUPTED = 130
"""Ctrl-C: 128 and the number of SIGINT."""
