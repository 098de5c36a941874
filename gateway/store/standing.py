"""What a process knows of the server behind its store: whether it can be used, and what its errors mean. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

KEEPS_ALL: Final = "noeviction"
EVICTS: Final = "the store may evict records: set maxmemory-policy to noeviction"
_WAITAOF_SINCE: Final = (7, 2)
_MISCONF: Final = "MISCONF"
_HINTS: Final[Mapping[type[Exception], str]] = {
    ReadOnlyError: "it is a replica: the address must lead to the master",
    OutOfMemoryError: "it has no memory left: raise maxmemory, or let records expire",
    BusyLoadingError: "it is reading its files",
    NoPermissionError: "its user may not run a command or touch a key: see docs/operations.md",
    AuthenticationError: "it does not take the password",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What INFO says, as far as it matters here. Empty where it may not be asked."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, info: str) -> "Told":
        """The answer to INFO as text."""
        return cls(dict(re.findall(r"^(\w+):(\S*)", info, re.MULTILINE)))

    @property
    def known(self) -> bool:
        """Whether it may be asked at all."""
        return bool(self.values)

    @property
    def evicts(self) -> bool:
        """Whether records may vanish when memory is short."""
        return self.values.get("maxmemory_policy", KEEPS_ALL) != KEEPS_ALL

    @property
    def writes_file(self) -> bool:
        """Whether it writes a file from which it can read everything again."""
        return self.values.get("aof_enabled") == "1"

    @property
    def version(self) -> str:
        """The version of Redis that it is, or is like."""
        return self.values.get("redis_version", "")

    @property
    def can_wait_for_file(self) -> bool:
        """Whether it knows WAITAOF."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return found is not None and (int(found[1]), int(found[2])) >= _WAITAOF_SINCE


def why(error: BaseException) -> str:
    """What to tell the operator of a store that is away: never what the server said, which could name a key."""
    cause: BaseException | None = error
    while cause is not None:  # what a server says to a new connection comes wrapped
        for kind, hint in _HINTS.items():
            if isinstance(cause, kind):
                return f"{type(cause).__name__}: {hint}"
        if isinstance(cause, RedisError) and _MISCONF in str(cause):
            return f"{type(cause).__name__}: it cannot write to its disk"
        cause = cause.__cause__
    return type(error).__name__
