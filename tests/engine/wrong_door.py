"""A program in the door's place that ends as if it had been called wrongly, as soon as an engine serves."""

import sys
from pathlib import Path

from lockserver.observer import watch_forever

for status in watch_forever(Path(sys.argv[sys.argv.index("--run-dir") + 1])):
    if status is not None and status.state == "HELD" and status.holder is not None and status.holder.endpoint:
        print("this door can't be opened", file=sys.stderr)
        sys.exit(64)
