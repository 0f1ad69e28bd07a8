"""A lock server that speaks other versions of the protocol: `python -m tests.chaos.other_version OLDEST NEWEST ...`."""

import sys

from lockserver.__main__ import main
from lockserver.rules import messages as m

if __name__ == "__main__":
    setattr(m, "OLDEST", int(sys.argv[1]))  # noqa: B010 (a constant; this is another program)
    setattr(m, "PROTOCOL", int(sys.argv[2]))  # noqa: B010
    sys.exit(main(sys.argv[3:]))
