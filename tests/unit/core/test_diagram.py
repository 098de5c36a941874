"""The diagrams are drawn from the tables, and the page shows them as they are."""

from gateway.core.diagram import operation_diagram, task_diagram
from tests.diagrams import PAGE, with_diagrams


def test_the_page_shows_what_the_tables_say():
    assert with_diagrams(PAGE.read_text()) == PAGE.read_text()


def test_a_diagram_has_a_start_every_move_and_the_ends():
    assert task_diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> working",
        "    working --> input_required: ask",
        "    working --> done: finish",
        "    working --> cancelled: cancel",
        "    input_required --> input_required: ask",
        "    input_required --> working: all answered",
        "    input_required --> done: finish",
        "    input_required --> cancelled: cancel",
        "    done --> [*]",
        "    cancelled --> [*]",
    ]


def test_events_with_the_same_end_share_an_arrow():
    assert "    accepted --> accepted: lost, repeatable / lost / observed" in operation_diagram().splitlines()
    assert operation_diagram().splitlines()[1] == "    [*] --> planned"
