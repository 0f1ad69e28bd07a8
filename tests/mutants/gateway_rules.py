# ruff: noqa: E501 (quotes from the source)
"""The mutants of the gateway: what a client may never get, whose answers are heard, who is sent twice and who is blamed."""

from tests.mutants.rules import Mutant

ANSWERS = "gateway/answers.py"
COMPARING = "gateway/comparing.py"
CONTINUING = "gateway/continuing.py"
DEATHS = "gateway/deaths.py"
DELIVERY = "gateway/delivery.py"
ADMISSION = "gateway/admission.py"
DUE = "gateway/due.py"
GRANTS = "gateway/grants.py"
UNDISTURBED = "gateway/undisturbed.py"
REQUEST = "gateway/request.py"
TOLD = "reference_engine/answer.py"
_BROKEN = "tests/gateway/test_broken_answers.py::"
_KINDS = "tests/gateway/test_kinds.py::"
_RULES = "tests/gateway/test_door_rules.py::"
_ANYWHERE = f"{_BROKEN}test_a_break_anywhere_is_not_in_what_the_client_has"


def _rule(file: str, name: str, without: str, test: str, *edits: tuple[str, str]) -> Mutant:
    changes = tuple((file, text, instead) for text, instead in edits)
    return Mutant(f"gateway-{name}", without, changes, tests=(test,), in_process=True)


GATEWAY = (
    _rule(
        ANSWERS,
        "every-choice-ends",
        "an answer is complete when each of its choices has a reason to end",
        f"{_ANYWHERE}[two choices]",
        (
            "        return len(choices) == self._wanted and all(choice.finish is not None for choice in choices)\n",
            "        return any(choice.finish is not None for choice in choices)\n",
        ),
    ),
    _rule(
        UNDISTURBED,
        "early-done",
        "[DONE] without a reason to end is held",
        f"{_RULES}test_an_end_without_a_reason_is_held_until_the_lock_has_spoken",
        (
            '                last = ClientsPart(b"", End.COMPLETE) if account.complete else ClientsPart(b"", End.BROKEN, UNFINISHED)\n                end = ends if account.complete else end\n',
            '                last, end = ClientsPart(b"", End.COMPLETE), ends\n',
        ),
    ),
    _rule(
        DUE,
        "kept-contexts-take-no-turns",
        "a context that is kept counts as its last block",
        f"{_RULES}test_contexts_that_are_kept_take_no_turns_as_far_as_they_fit_in_what_is_kept",
        (
            "    return min(visitor.tokens, grant.kept_block) if kept else visitor.tokens",
            "    return visitor.tokens",
        ),
    ),
    _rule(
        ADMISSION,
        "kept-contexts-fit",
        "contexts that don't fit in what was kept count whole",
        f"{_RULES}test_contexts_that_are_kept_take_no_turns_as_far_as_they_fit_in_what_is_kept",
        ("                grant.kept_tokens -= visitor.tokens\n", "                pass\n"),
    ),
    _rule(
        DUE,
        "kept-by-the-last",
        "what is kept is what the last engine that served had read",
        f"{_RULES}test_a_context_is_kept_only_by_the_last_engine_that_served[an engine that gave it nothing]",
        ("visitor.read_by == state.served_last and", "visitor.read_by and"),
    ),
    _rule(
        DUE,
        "doubts-are-held",
        "a failure is held back until the lock has said whether that engine still holds",
        f"{_RULES}test_an_end_without_a_reason_is_held_until_the_lock_has_spoken",
        ("    if now < held_until:\n        return held_until\n", ""),
    ),
    _rule(
        DUE,
        "nobody-there",
        "an engine where nobody listens is dead, whatever the lock says by now",
        f"{_RULES}test_a_death_that_the_lock_hears_of_late_costs_nobody_an_answer",
        (
            "    if state.there_at >= held_until or now >= last_at:\n        return Step(Do.JUDGE, request, lost=state.there_at < held_until)\n",
            "    if True:\n        return Step(Do.JUDGE, request)\n",
        ),
    ),
    _rule(
        DUE,
        "turns",
        "whoever waits for its turn is not given up while others have theirs",
        f"{_RULES}test_nobody_who_waits_for_its_turn_is_given_up_while_others_have_theirs",
        ("max(since, state.moved_at)", "since"),
    ),
    _rule(
        DELIVERY,
        "cut",
        "an answer that ends with an error is cut: its body never ends as a whole one's does",
        f"{_KINDS}test_a_compared_answer_that_comes_out_otherwise_ends_with_an_error",
        ("        return [*said, e.Cut(self._number)]\n", "        return [*said, e.End(self._number)]\n"),
    ),
    _rule(
        COMPARING,
        "differs",
        "an answer that comes out otherwise is ended with an error",
        f"{_KINDS}test_a_compared_answer_that_comes_out_otherwise_ends_with_an_error",
        (
            '            raise Differs(f"token {start + 1} or a later one of choice {index} is another")\n',
            "            pass\n",
        ),
        ('            raise Differs(f"the text of choice {index} is another")\n', "            pass\n"),
    ),
    _rule(
        COMPARING,
        "repeats-nothing",
        "what a piece repeats of what the client has is cut off",
        f"{_BROKEN}test_pieces_of_several_tokens_are_cut_where_the_client_has_some",
        (
            '        new_ids = list(again.ids[len(had.ids) :])\n        skip = len(said.token_ids or ()) - len(new_ids)\n        text = bytes(again.text[len(had.text) :]).decode("utf-8", "replace")\n',
            '        new_ids, skip, text = list(said.token_ids or ()), 0, said.text or ""\n',
        ),
    ),
    _rule(
        CONTINUING,
        "tokens-so-far",
        "an answer goes on behind all tokens that the client has",
        f"{_ANYWHERE}[completion]",
        (
            '        body["prompt"] = [*prompt, *had.ids]\n',
            '        body["prompt"] = [*prompt, *had.ids[:-1]]\n',
        ),
    ),
    _rule(
        CONTINUING,
        "tokens-left",
        "tokens that the client has count for the limit of the rest",
        f"{_ANYWHERE}[completion]",
        ("else limits.max_tokens - has\n", "else limits.max_tokens\n"),
    ),
    _rule(
        CONTINUING,
        "stops-across",
        "the engine that goes on is told of stop strings, which may begin before the break",
        f"{_BROKEN}test_a_stop_string_on_both_sides_of_the_break_stops",
        (' or name == "stop"}', "}"),
    ),
    _rule(
        CONTINUING,
        "believed-only-if-said",
        "no text is believed of an engine that doesn't say that it begins where the client stands",
        f"{_BROKEN}test_a_sampled_answer_ends_where_the_engine_cannot_begin_in_the_middle",
        ("if len(choice.prompt_token_ids or ()) != rest.prompt:", "if False:"),
    ),
    _rule(
        CONTINUING,
        "characters",
        "the engine is told how much of the text the client has in characters",
        f"{_ANYWHERE}[completion]",
        ('"chars": len(text.decode("utf-8", "replace"))', '"chars": len(text)'),
    ),
    _rule(
        TOLD,
        "begins-where-the-client-stands",
        "an engine that goes on says nothing that the client has",
        f"{_ANYWHERE}[completion]",
        ("        self._told = question.told\n", ""),
    ),
    _rule(
        TOLD,
        "goes-through",
        "an engine that goes on knows what the answer's tokens have begun",
        f"{_BROKEN}test_a_break_inside_a_character_is_mended_with_the_same_pieces",
        ("            self._tail += self._detokenizer.push(token)\n", "            pass\n"),
    ),
    _rule(
        "reference_engine/asking.py",
        "the-clients-text",
        "an engine begins in the middle of an answer only if its text of the answer's tokens is the client's",
        "tests/reference_engine/test_text.py::"
        "test_what_is_said_of_an_answers_beginning_is_believed_if_its_text_is_the_clients",
        (" or zlib.crc32(text.encode()) != begun.crc32:", ":"),
    ),
    _rule(
        CONTINUING,
        "anew",
        "of what a client has nothing is asked anew",
        f"{_BROKEN}test_of_what_a_client_has_nothing_is_asked_anew",
        ("                del had.ids[:]", "                pass"),
    ),
    _rule(
        REQUEST,
        "only-what-asks",
        "only what asks is ever sent twice",
        f"{_KINDS}test_what_changes_something_is_not_sent_again",
        ("        if recovery is None and not self.kind.repeatable:\n", "        if False:\n"),
    ),
    _rule(
        GRANTS,
        "newer-token",
        "a newer token is the end of every older grant, whoever has it",
        f"{_RULES}test_nothing_of_an_engine_with_an_old_token_is_passed_on",
        (
            "        return current if current is not None and current.token < self.newest else None\n",
            "        return current if current is not None and current.token < seen.token else None\n",
        ),
    ),
    _rule(
        GRANTS,
        "old-holder",
        "whoever holds with an older token than the newest is asked nothing",
        f"{_RULES}test_nothing_of_an_engine_with_an_old_token_is_passed_on",
        ("        if not seen.token or seen.token < self.newest:\n", "        if not seen.token:\n"),
    ),
    _rule(
        GRANTS,
        "leases-are-given-back",
        "whoever is over, or goes to another engine, has no lease any more",
        f"{_RULES}test_whoever_is_admitted_has_a_lease_and_gives_it_back_however_it_ends",
        (
            "        self.leases.pop(request, None)\n        self.sent.discard(request)\n",
            "        self.sent.discard(request)\n",
        ),
    ),
    _rule(
        GRANTS,
        "leases-of-a-token",
        "leases end with their token",
        f"{_RULES}test_nothing_of_an_engine_with_an_old_token_is_passed_on",
        ("        self.leases.clear()\n        self.unproven.clear()\n", "        self.unproven.clear()\n"),
    ),
    _rule(
        GRANTS,
        "drain-admits-nobody",
        "in a switchover nobody new is admitted",
        f"{_RULES}test_in_a_switchover_nobody_new_is_admitted_and_whoever_is_there_may_finish",
        (
            "self.current if self.current is not None and self.current.phase is Phase.OPEN else None",
            "self.current if self.serves else None",
        ),
    ),
    _rule(
        DUE,
        "strikes",
        "a death counts against a request only if that engine had given it nothing",
        f"{_RULES}test_an_engine_that_gave_something_is_no_strike_among_those_that_gave_nothing",
        (
            "        and request in grant.unproven\n        and request in grant.sent\n",
            "        and request in grant.sent\n",
        ),
    ),
    _rule(
        "gateway/kinds.py",
        "choices-are-bounded",
        "of so many choices an account is kept, and of no more",
        f"{_KINDS}test_an_account_is_kept_of_so_many_choices_and_no_more",
        ("    if _per_prompt(fields) > MOST_CHOICES or type", "    if type"),
    ),
    _rule(
        ADMISSION,
        "poison-is-remembered",
        "what three engines died of is refused to any client",
        f"{_RULES}test_poison_is_refused_for_a_while_whoever_sends_it",
        ("            elif strikes > self.bounds.strikes:\n", "            elif False:\n"),
    ),
    _rule(
        DEATHS,
        "deaths-outlive-clients",
        "a death counts although its client has left",
        f"{_RULES}test_who_leaves_before_the_third_death_begins_where_it_was",
        ("            if died and now < until:\n", "            if False:\n"),
    ),
    _rule(
        DUE,
        "the-last-has-left",
        "when the last engine has left in order a new request doesn't wait",
        f"{_RULES}test_when_the_last_engine_is_told_to_end_who_is_new_is_refused",
        (
            "    return Step(Do.REFUSE, state.visitors.new[0], status=503, why=ENDED) if now >= at else at\n",
            "    return NEVER\n",
        ),
    ),
    _rule(
        GRANTS,
        "another-may-follow",
        "as long as another engine may follow, a new request waits",
        f"{_RULES}test_as_long_as_an_engine_may_follow_who_is_new_waits",
        (
            '        return left and not (self.away or self.lock.others or self.lock.state == "RECOVERING")\n',
            "        return left\n",
        ),
    ),
    _rule(
        REQUEST,
        "silence-has-an-end",
        "a stream whose engine says nothing ends after a bound",
        f"{_RULES}test_a_stream_whose_engine_says_nothing_ends_with_an_error_after_a_bound",
        ("        elif now >= self._heard_at + bounds.silence_s:\n", "        elif False:\n"),
    ),
    _rule(
        ADMISSION,
        "suspects-are-alone",
        "nobody is admitted beside a suspect until it has got something",
        f"{_RULES}test_nobody_comes_beside_a_suspect_until_it_has_got_something",
        ("            state.trial = request\n", "            pass\n"),
    ),
    _rule(
        ADMISSION,
        "queue",
        "only so many new requests wait",
        f"{_RULES}test_only_so_many_wait_and_only_for_so_long",
        (
            "            if visitors.count_new(preflights=event.preflight) >= self.bounds.queue:\n",
            "            if False:\n",
        ),
    ),
    _rule(
        REQUEST,
        "preflights-wait-apart",
        "preflights, which need no key, take no place of other requests",
        f"{_RULES}test_preflights_which_need_no_key_take_no_place_of_others",
        (', self.kind.method == "OPTIONS")]', ")]"),
    ),
    _rule(
        ANSWERS,
        "no-utf8-is-no-answer",
        "bytes that are no UTF-8 are no answer",
        f"{_KINDS}test_what_is_no_utf8_is_no_json",
        ("        body.decode()  # msgspec", "        pass  # msgspec"),
    ),
    _rule(
        ANSWERS,
        "choices-are-objects",
        "an answer whose choices are none is no answer",
        f"{_KINDS}test_what_is_no_answer_is_known_from_one",
        ("Annotated[list[dict[str, msgspec.Raw]],", "Annotated[list[msgspec.Raw],"),
    ),
    _rule(
        COMPARING,
        "empty-pieces",
        "an empty piece where two compared answers meet is passed on",
        f"{_ANYWHERE}[echo]",
        (" or (again.blanks > had.blanks and not again.ids)", ""),
    ),
    _rule(
        CONTINUING,
        "no-bound-of-the-clients",
        "an engine that goes on is told where the client set no bound",
        f"{_BROKEN}test_an_engine_that_goes_on_is_told_where_the_client_set_no_bound",
        ('{"open": 1} if is_open else {}', "{}"),
    ),
    _rule(
        "gateway/sse.py",
        "byte-order-mark",
        "a stream that begins with a byte order mark keeps its first event",
        f"{_BROKEN}test_an_event_is_the_same_however_its_lines_end_and_its_bytes_come",
        ('    text = text.removeprefix(b"\\xef\\xbb\\xbf")  # a stream may begin so\n', ""),
    ),
    _rule(
        "sidecar/http_requests.py",
        "strangers-wait-in-a-few",
        "only so many requests that are put down to no client wait on a connection",
        "tests/sidecar/test_http_requests.py::"
        "test_only_so_many_requests_that_are_put_down_to_nobody_wait_on_one_connection",
        ("            if len(self.ready) >= _MOST_UNCOUNTED:\n", "            if False:\n"),
    ),
)
