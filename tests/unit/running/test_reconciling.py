"""When an authority is asked again, and what its answers are taken for."""

import pytest

from gateway.core.model import OutcomeKind
from gateway.policy.operation import Reconcile
from gateway.running.reconciling import LAST_MS, Pauses, Told, Vain, next_at, read
from gateway.wire.jsonrpc import Response

RULE = Reconcile(
    tool="state",
    outcome="result:/structuredContent/state",
    succeeded=["published"],
    failed=["absent"],
    receipt="result:/structuredContent/receipt",
)


class TestPauses:
    def test_double_up_to_the_longest(self):
        pauses = Pauses(2, 300)
        assert [pauses.after(tries, 0.5) for tries in (0, 1, 2, 7, 8, 10_000)] == [2, 4, 8, 256, 300, 300]

    def test_are_spread_by_half_to_either_side(self):
        assert (Pauses(2, 300).after(0, 0), Pauses(2, 300).after(99, 1)) == (1, 450)


@pytest.mark.parametrize(
    ("pause", "ends", "at"),
    [
        (10_000, 100_000, 11_000),
        (98_999, 100_000, 99_999),
        (99_000, 100_000, 100_000 - LAST_MS),  # it would not be before the end
        (500_000, 100_000, 100_000 - LAST_MS),
        (5_000, 3_000, 6_000),  # the end is too near for one more
        (5_000, 3_001, 2_001),
        (5_000, 0, 6_000),  # it is over
    ],
)
def test_an_end_that_the_pause_would_pass_gets_a_question_shortly_before_it(pause, ends, at):
    assert next_at(1_000, pause, ends) == at


def said(body: bytes, *, ok: bool = True) -> Response:
    return Response(b"1", ok, body)


class TestRead:
    @pytest.mark.parametrize(("word", "kind"), [("published", OutcomeKind.RESULT), ("absent", OutcomeKind.TOOL_ERROR)])
    def test_a_word_of_the_policy_tells_and_brings_the_receipt(self, word, kind):
        body = b'{"content":[],"structuredContent":{"state":"%s","receipt":{"n":1.0}}}' % word.encode()
        assert read(said(body), RULE) == Told(kind, '{"n":1.0}')

    @pytest.mark.parametrize(
        ("response", "reason"),
        [
            (said(b'{"structuredContent":{"state":"pending"}}'), "word"),
            (said(b'{"content":[]}'), "word"),
            (said(b'{"resultType":"task","taskId":"x","status":"working"}'), "word"),
            (said(b'{"structuredContent":{"state":"published"},"isError":true}'), "error"),
            (said(b'{"code":-32602,"message":"published"}', ok=False), "error"),
        ],
    )
    def test_anything_else_tells_nothing(self, response, reason):
        assert read(response, RULE) == Vain(reason)
