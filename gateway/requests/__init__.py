"""The request loop: what is wanted -> may it -> apply + commit -> reply.

`service` dispatches, `calls` serves `tools/call`, `records` is the store as all of them use it. `forwarding` and
`passthrough` carry what is no task; `outbox`, `delivery`, `listening` and `legacy_streams` are the streams of clients.
"""
