"""How an answer can go on when its engine is lost, given what its client has of it. Pure.

What is possible at all follows from the request (`kinds.py`); what is possible now, from how much is known of the
answer.
"""

from gateway.rules.answers import Account
from gateway.rules.continuing import Continuing
from gateway.rules.kinds import Api, Kind, Recovery

BYTES_A_TOKEN = 4
"""About so many a token has, where tokens aren't known."""


def recovery_of(kind: Kind, account: Account | None, max_len: int | None) -> Recovery | None:
    """For a client that has the head of an answer. None: it has nothing of the answer itself, and may have any whole
    one.
    """
    if account is None:
        return Recovery.ENDED
    if not account.id:
        return None  # it has comments only
    if account.empty:
        return Recovery.COMPARED  # a role; there is nothing that could differ
    if kind.recovery is Recovery.CONTINUED and Continuing.can(kind, account, max_len):
        return Recovery.CONTINUED
    return Recovery.COMPARED if kind.same_again else Recovery.ENDED


def tokens_to_read(kind: Kind, account: Account | None) -> int:
    """About so many an engine has to read before it can go on: prompt and answer, or the prompt alone where all of the
    answer is made again.
    """
    if account is None:
        return len(kind.body) // BYTES_A_TOKEN
    choices = account.choices
    if kind.recovery is Recovery.CONTINUED:
        known = sum(len(choice.prompt or ()) + len(choice.ids) for choice in choices if choice.finish is None)
    else:
        known = sum(len(choice.prompt or ()) for choice in choices)
    return known or len(kind.body) // BYTES_A_TOKEN


def obstacle(kind: Kind) -> str:
    """Why it can't."""
    if kind.api is Api.OTHER:
        return "its form is not known here"
    return kind.why or "the engine tells no token ids"
