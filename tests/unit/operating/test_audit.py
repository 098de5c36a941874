"""The audit sink: whole lines at the end of a private file."""

import json
import stat

import pytest

from gateway.operating.audit import Sink, SwitchChanged
from tests.requirements import requirement


def changed(number):
    return SwitchChanged(f"id-{number}", number, "all", on=True, reason="caf\u00e9", by="ada")


@requirement("OWN-AUDIT")
async def test_lines_are_added_to_a_file_of_its_user(tmp_path):
    file = tmp_path / "audit.jsonl"
    sink = Sink(file)
    await sink.write([changed(1), changed(2)])
    await sink.write([])
    file.rename(tmp_path / "rotated")
    await sink.write([changed(3)])
    first = [json.loads(line) for line in (tmp_path / "rotated").read_text().splitlines()]
    assert [line["id"] for line in first] == ["id-1", "id-2"]
    assert first[0] == {
        "event": "switch_changed",
        "id": "id-1",
        "at_ms": 1,
        "scope": "all",
        "on": True,
        "reason": "caf\u00e9",
        "by": "ada",
        "issuer": "",
        "tenant": "",
    }
    assert json.loads(file.read_text())["id"] == "id-3"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@requirement("OWN-AUDIT")
async def test_a_line_that_was_never_finished_spoils_no_other(tmp_path):
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b'{"event":"led')
    await Sink(file).write([changed(1)])
    torn, whole = file.read_text().splitlines()
    assert (torn, json.loads(whole)["id"]) == ('{"event":"led', "id-1")


async def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError):
        await Sink(tmp_path).write([changed(1)])
