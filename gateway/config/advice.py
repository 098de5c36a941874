"""What a configuration may say and had better not: told to the operator, and never refused."""

from collections.abc import Iterator

from gateway.config.models import Config


def advice(config: Config) -> Iterator[str]:
    """What to think over, one line each."""
    enough_s = 2 * config.store.timeout_s
    if config.runner.takeover_grace_s < enough_s:
        yield (
            f"runner.takeover_grace_s: is less than twice store.timeout_s ({enough_s:g} s). Where several gateways "
            "share the store, an outage longer than runner.lease_s may make calls unknown that go on: "
            "the first gateway that finds the store again does not wait until the others have"
        )
