"""Runs a story in a forked child that can't have io_uring, as no process below an engine-shim can. (Not in this one: a
filter is for good.)
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec

from sidecar.kernel import io_uring

P = ParamSpec("P")


def filtered(story: Callable[P, None]) -> Callable[P, None]:
    @functools.wraps(story)
    def in_a_child(*args: P.args, **more: P.kwargs) -> None:
        child = os.fork()
        if child == 0:
            try:
                io_uring.forbid()
                story(*args, **more)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, "see the traceback above"

    return in_a_child
