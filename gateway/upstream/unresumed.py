"""What every upstream is whose requests end with the process that sent them."""

from typing import Never

from gateway.upstream.port import OutcomeUnknown


class Unresumed:
    """An upstream without streams that another process could take up."""

    async def resume(self, *_: object, **__: object) -> Never:
        """See `Upstream.resume`. Raises OutcomeUnknown."""
        raise OutcomeUnknown("upstream_down", "the upstream has no streams that another process could take up")
