"""The places of the changes that must never go unnoticed are still there."""

import pytest

from tests.mutations import MUTATIONS, ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_what_a_mutation_changes_stands_there_once(mutation):
    for edit in mutation.edits:
        assert (ROOT / edit.file).read_text().count(edit.old) == 1, edit.old
    for test in mutation.tests:
        assert (ROOT / test.partition("::")[0]).is_file()
