"""What a clean stop of the embedded store leaves beside its directory: the sign that nothing was lost.

The same word stands in the store. A copy of the directory that is put back later holds another word, or there is none
beside it any more: what the copy does not know of may have been sent.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def sign_of(directory: Path) -> Path:
    """The file, beside the directory and not inside of it."""
    whole = directory.resolve()
    return whole.with_name(f"{whole.name}.closed")


def new_word() -> str:
    """A word that was never used before."""
    return secrets.token_hex(16)


def leave(directory: Path, word: str) -> bool:
    """Leaves the word; whether that could be done."""
    try:
        sign_of(directory).write_text(word)
    except OSError:
        return False
    return True


def take(directory: Path) -> str:
    """The word that was left, once: it is gone for good before anything new is written. Empty where there is none."""
    sign = sign_of(directory)
    try:
        word = sign.read_text()
        sign.unlink()
    except OSError:
        return ""
    with suppress(OSError):
        folder = os.open(sign.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return word.strip()
