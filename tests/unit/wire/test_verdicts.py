"""What an authority says: a word at a pointer, and what the policy takes it for."""

import pytest

from gateway.core.model import OutcomeKind
from gateway.wire.verdicts import verdict, word

BODY = b'{"structuredContent":{"state":"publi\\u0073hed","n":1.0,"done":true,"off":null,"o":{"state":"x"},"l":["a"]}}'


@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        ("state", "published"),
        ("n", "1.0"),
        ("done", "true"),
        ("l/0", "a"),
        ("off", None),
        ("o", None),
        ("l", None),
        ("l/1", None),
        ("absent", None),
        ("state/x", None),
    ],
)
def test_a_word_is_a_string_or_a_number_or_boolean_as_written(pointer, said):
    assert word(BODY, f"result:/structuredContent/{pointer}") == said


@pytest.mark.parametrize("body", [b"[]", b"{}", b"null"])
def test_a_result_without_the_place_says_nothing(body):
    assert word(body, "result:/structuredContent/state") is None


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("published", OutcomeKind.RESULT),
        ("1", OutcomeKind.RESULT),
        ("absent", OutcomeKind.TOOL_ERROR),
        ("Published", None),
        ("pending", None),
        ("", None),
        (None, None),
    ],
)
def test_words_are_compared_letter_by_letter(said, kind):
    assert verdict(said, ("published", "1"), ("absent",)) is kind
