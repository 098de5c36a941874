"""mcp-task-gateway: durable MCP tasks in front of servers that know nothing of them.

How a request travels, top to bottom:

    cli        reads the command line
    app        builds everything from the configuration, starts and drains it
    edge       HTTP in and out
    service    the request loop: who, what, may it, apply + commit, reply
    runner     the runner loop: claim, open, apply(sent) + commit, perform, apply(answer) + commit
    store      records in Redis, compare-and-set, claims, wake-ups
    upstream   the servers behind the gateway
    config     what the operator wrote
    wire       bytes and headers to intents, records to bytes; both dialects
    policy     one pure question: may this tool be a task, and within which limits
    core       the task and operation machines

A request never touches an upstream on behalf of a task, a runner never touches a client: they meet in the store.
"""

__version__ = "0.1.0"
