"""What the gateway must do, one entry per line of the two dialects' checklists and per promise of our own.

A test names the entries that it shows with `@requirement("ID")`. `test_requirements.py` fails when an entry has no
test, when a test names no entry, and when an entry is deferred although a test shows it.
"""

from dataclasses import dataclass

import pytest

CORE_TASKS = "2025-11-25 basic/utilities/tasks"
CORE_HTTP = "2025-11-25 basic/transports"
CORE_AUTHORIZATION = "2025-11-25 basic/authorization"
CORE_LIFECYCLE = "2025-11-25 basic/lifecycle"
EXTENSION = "ext-tasks specification/draft/tasks"
MODERN_HTTP = "2026-07-28 basic/transports/streamable-http"
MODERN = "2026-07-28 basic"
OWN = "ARCHITECTURE.md"

_BUDGETS = "budgets other than concurrency are refused by `check` until they are enforced"


@dataclass(frozen=True)
class Entry:
    """One thing the gateway must do; `deferred` says why it does not yet."""

    behaviour: str
    source: str
    deferred: str = ""


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Marks a test as showing these entries."""
    return pytest.mark.requirement(*ids)


ENTRIES: dict[str, Entry] = {
    # Tasks of 2025-11-25: negotiation
    "T25-CAP-1": Entry("initialize at 2025-11-25 answers the tasks capability with cancel and tools/call", CORE_TASKS),
    "T25-CAP-2": Entry("without authentication tasks.list is absent and tasks/list is -32601", CORE_TASKS),
    "T25-CAP-3": Entry("older sessions see no tasks, params.task is ignored there, tasks/* is -32601", CORE_TASKS),
    "T25-CAP-4": Entry("tools/list shows execution.taskSupport as the policy says, all else unchanged", CORE_TASKS),
    "T25-CAP-5": Entry("a task of a forbidden tool and a plain call of a required tool are -32601", CORE_TASKS),
    "T25-CAP-6": Entry("an upstream's own taskSupport is never shown", CORE_TASKS),
    "T25-CAP-7": Entry("a task-augmented call is never answered plainly", CORE_TASKS),
    # creation
    "T25-NEW-1": Entry(
        "params.task answers {task} at once, after the record is durable, without resultType", CORE_TASKS
    ),
    "T25-NEW-2": Entry("task ids are ours, with at least 128 bits from a cryptographic source", CORE_TASKS),
    "T25-NEW-3": Entry("ttl is clamped to policy and told; a ttl that is no positive integer is -32602", CORE_TASKS),
    "T25-NEW-4": Entry(
        "policy may add model-immediate-response", CORE_TASKS, "an optional hint without a policy key yet"
    ),
    "T25-NEW-5": Entry(
        "arguments are checked before a record exists",
        CORE_TASKS,
        "size and depth are checked; the tool's own schema is not yet, and `check` refuses another arguments_schema",
    ),
    "T25-NEW-6": Entry("a progress token stays valid for the life of the task", CORE_TASKS),
    # tasks/get
    "T25-GET-1": Entry("a flat Task with RFC 3339 times and no related-task metadata", CORE_TASKS),
    "T25-GET-2": Entry("unknown, foreign, malformed and expired ids are -32602, foreign like unknown", CORE_TASKS),
    "T25-GET-3": Entry("one JSON answer, and params.taskId is the only source of truth", CORE_TASKS),
    # tasks/result
    "T25-RES-1": Entry("blocks until the task ends or expires, and answers exactly once", CORE_TASKS),
    "T25-RES-2": Entry("answers what the call would have answered; a cancelled task answers an error", CORE_TASKS),
    "T25-RES-3": Entry("carries related-task metadata and keeps all other _meta", CORE_TASKS),
    "T25-RES-4": Entry("may be dropped and asked again until the ttl ends", CORE_TASKS),
    "T25-RES-5": Entry("a waiting stream sends a comment at least every 15 s", CORE_TASKS),
    # tasks/list
    "T25-LST-1": Entry("own tasks only, newest first, protected cursors", CORE_TASKS),
    "T25-LST-2": Entry("lists what tasks/get finds", CORE_TASKS),
    # tasks/cancel
    "T25-CAN-1": Entry("answers cancelled once the record says so, and it stays so", CORE_TASKS),
    "T25-CAN-2": Entry("a terminal task is -32602 and untouched; of two cancels one wins", CORE_TASKS),
    "T25-CAN-3": Entry("the upstream is told once, with the id of our own request", CORE_TASKS),
    # states
    "T25-ST-1": Entry("only the transitions of the specification happen; terminal states are absorbing", CORE_TASKS),
    "T25-ST-2": Entry("isError makes a task failed, and its result stays retrievable", CORE_TASKS),
    "T25-ST-3": Entry("status notifications on exactly one stream of the owner", CORE_TASKS),
    # input
    "T25-INP-1": Entry("questions of the upstream reach the client and their answers the upstream", CORE_TASKS),
    "T25-INP-2": Entry("what the client did not declare is refused upstream at once, and the task goes on", CORE_TASKS),
    "T25-INP-3": Entry("nobody waits for input for ever", CORE_TASKS),
    "T25-INP-4": Entry("progress of a task reaches the client", CORE_TASKS),
    # isolation
    "T25-SEC-1": Entry("bound to issuer, subject and tenant, not to session, connection or token", CORE_TASKS),
    "T25-SEC-2": Entry("every operation authorizes anew", CORE_TASKS),
    "T25-SEC-3": Entry("limits on concurrency and ttl are enforced and told", CORE_TASKS),
    "T25-SEC-4": Entry("an audit trail with the auth context", CORE_TASKS),
    "T25-SEC-5": Entry("a tombstone tells expired from unknown for a day, to the owner only", CORE_TASKS),
    "T25-SEC-6": Entry("a task belongs to the endpoint where it was made", CORE_TASKS),
    # HTTP
    "T25-HTTP-1": Entry("a dropped connection cancels nothing", CORE_HTTP),
    "T25-HTTP-2": Entry("GET stream, DELETE, 404 for ended sessions, resumption", CORE_HTTP),
    "T25-HTTP-3": Entry("batches are served in sessions at 2025-03-26 and refused elsewhere", CORE_HTTP),
    # The extension: negotiation
    "TX-CAP-1": Entry("server/discover lists the extension and no tasks capability", EXTENSION),
    "TX-CAP-2": Entry("the declaration counts for its own request only", EXTENSION),
    "TX-CAP-3": Entry("the gateway decides; params.task is ignored", EXTENSION),
    "TX-CAP-4": Entry("without declaration never a task; a task-only tool is -32021 with HTTP 400", EXTENSION),
    "TX-CAP-5": Entry("tasks/* without declaration is -32021 with HTTP 400", EXTENSION),
    "TX-CAP-6": Entry("tasks/result and tasks/list are -32601 with HTTP 404", EXTENSION),
    # creation
    "TX-NEW-1": Entry("CreateTaskResult is flat, with ttlMs and pollIntervalMs", EXTENSION),
    "TX-NEW-2": Entry("sent only once tasks/get would find the task", EXTENSION),
    "TX-NEW-3": Entry("input before the work by multi round-trip requests", EXTENSION),
    "TX-NEW-4": Entry("a fast call may answer directly; one upstream call in either case", EXTENSION),
    # tasks/get
    "TX-GET-1": Entry("resultType complete with result, error or inputRequests as the status says", EXTENSION),
    "TX-GET-2": Entry("isError is completed; failed is for JSON-RPC errors only", EXTENSION),
    "TX-GET-3": Entry("the result inside is what the call would have answered", EXTENSION),
    "TX-GET-4": Entry("unknown, foreign and expired ids are -32602", EXTENSION),
    # tasks/update
    "TX-UPD-1": Entry("an empty acknowledgement; unknown tasks are -32602", EXTENSION),
    "TX-UPD-2": Entry("keys that are not outstanding are ignored", EXTENSION),
    "TX-UPD-3": Entry("keys are never used twice within a task", EXTENSION),
    "TX-UPD-4": Entry("answers are checked against the question", EXTENSION),
    # tasks/cancel
    "TX-CAN-1": Entry("an empty acknowledgement, cooperative; terminal tasks stay as they are", EXTENSION),
    "TX-CAN-2": Entry("a stream closed during the inline wait sets the latch; after that the task stays", EXTENSION),
    "TX-CAN-3": Entry("work that won the race ends completed", EXTENSION),
    # notifications
    "TX-NOT-1": Entry("subscriptions/listen with taskIds", EXTENSION),
    "TX-NOT-2": Entry("no progress and no log message for tasks", EXTENSION),
    "TX-NOT-3": Entry("a change on any replica reaches the listener", EXTENSION),
    "TX-NOT-4": Entry("losing scope ends the stream", EXTENSION),
    # HTTP
    "TX-HTTP-1": Entry("both eras on one URL; the body decides; GET is 405", MODERN_HTTP),
    "TX-HTTP-2": Entry("headers equal the body, or -32020 with HTTP 400", MODERN_HTTP),
    "TX-HTTP-3": Entry("missing _meta fields are -32602 with HTTP 400", MODERN),
    "TX-HTTP-4": Entry("a version not served is -32022 with HTTP 400, an unknown method 404", MODERN_HTTP),
    "TX-HTTP-5": Entry("every result has resultType; lists carry ttlMs and cacheScope", MODERN),
    "TX-HTTP-6": Entry("no code that this revision reserves; an upstream's -32002 becomes -32602", MODERN),
    "TX-HTTP-7": Entry("streams are not buffered; closing one of a plain call cancels it upstream", MODERN_HTTP),
    # between the eras
    "BR-1": Entry("modern client, legacy upstream that asks during a plain call", OWN),
    "BR-2": Entry("legacy client, modern upstream", OWN),
    "BR-3": Entry("tasks of an upstream are driven to their end and shown as ours; its ids never leave", OWN),
    "BR-4": Entry("what exists in one era only is mapped or refused", OWN),
    "BR-5": Entry("unknown methods pass between peers of one era", OWN),
    # our own promises
    "OWN-SENT": Entry("sent is committed before the first byte leaves for the upstream", OWN),
    "OWN-ONCE": Entry("work whose holder died is never sent again unless policy calls it repeatable", OWN),
    "OWN-REATTACH": Entry("a call that was sent is taken up where its stream broke, before it is called unknown", OWN),
    "OWN-404": Entry("a call is sent again after a 404 to its own POST only, once, and where policy allows it", OWN),
    "OWN-HEALED": Entry("a session that an upstream has forgotten, however it says so, is opened anew once", OWN),
    "OWN-FENCE": Entry("a holder whose fence was taken writes nothing", OWN),
    "OWN-MATRIX": Entry(
        "whatever breaks at whichever moment: one effect at most, no lost task, one answer, no forbidden step", OWN
    ),
    "OWN-RACE": Entry("of a cancellation and an answer one wins, once; the ledger keeps what the upstream said", OWN),
    "OWN-SWITCH-ATOMIC": Entry("a switch that is set before the record of a call is made blocks the call", OWN),
    "OWN-SOAK": Entry("nothing is lost or done twice while processes and the store are killed and paused", OWN),
    "OWN-GRACE": Entry(
        "a sent operation is declared lost only after the grace, also after the claimer reconnected", OWN
    ),
    "OWN-DOUBT": Entry("a store that may have lost something never makes work start again that was sent", OWN),
    "OWN-DURABLE": Entry("a consequential call leaves only once its mark is as durable as configured", OWN),
    "OWN-EVICT": Entry("a store that may evict records starts nothing, and says what to set", OWN),
    "OWN-CAS": Entry("a record that changed in between is not overwritten", OWN),
    "OWN-KEY": Entry("ownership is part of the key: a foreign id is an unknown id", OWN),
    "OWN-LEAK": Entry("every key has a time to live or is on the permanent list; counters heal themselves", OWN),
    "OWN-LATE": Entry("a late answer completes the operation and never a terminal task", OWN),
    "OWN-AWAY": Entry("while the store is away starts are refused and nothing is sent", OWN),
    "OWN-WAKE": Entry("a lost wake-up costs time and nothing else", OWN),
    "OWN-ADOPT": Entry("the embedded server outlives a killed gateway and is adopted by the next", OWN),
    "OWN-LIMITS": Entry("bad input gets the right error and changes nothing", OWN),
    "OWN-ERA": Entry("the era of an upstream is found out once, and old servers are none the worse for it", OWN),
    "OWN-APART": Entry("no principal meets another one's process of a stdio upstream", OWN),
    "OWN-EXIT": Entry("a process that ends fails its calls at once and tells how it ended", OWN),
    "OWN-ORPHANS": Entry("whatever ends the gateway, nothing of the servers that it ran is left", OWN),
    "OWN-STDIO": Entry(
        "both eras on the standard streams; nothing but whole messages goes out; the end is drained", OWN
    ),
    "OWN-BYTES": Entry("what is not ours stays as it was written", OWN),
    "OWN-TOKEN": Entry("a token that is not exactly right is refused before anything is written", OWN),
    "OWN-KEYS": Entry("keys of issuers are renewed, survive an hour of outage, and stop working when removed", OWN),
    "OWN-RESOURCE": Entry("what a client needs to get a token is told from the configuration only", CORE_AUTHORIZATION),
    "OWN-QUIET": Entry("no argument, result or token in logs, metrics and errors", OWN),
    "OWN-PURE": Entry("core, wire and policy do no I/O", OWN),
    "OWN-ERRORS": Entry("every refusal has the code and status of the one table", OWN),
    "OWN-CONFIG": Entry("every problem of a configuration is reported at once with file and line", OWN),
    "OWN-SCHEMA": Entry("records carry a schema number; an unknown one is refused", OWN),
    "OWN-HEALTH": Entry("liveness speaks of the process, readiness of its store and of the keys of issuers", OWN),
    "OWN-ADMIN": Entry("the operator's API serves whoever has the token, or without one no web page", OWN),
    "OWN-AUDIT": Entry("what becomes known of an effect reaches the audit sink at least once", OWN),
    "OWN-UNKNOWN": Entry("unknown outcomes are counted by age", OWN),
    "OWN-ERASE": Entry("a person's name is taken out of the records; what happened and what is unknown stay", OWN),
    "OWN-OPERATE": Entry("the operator finds, cancels and settles whatever is recorded, and reads no arguments", OWN),
    "OWN-BUDGET": Entry("budgets for polling and lookups", OWN, _BUDGETS),
    "OWN-SWITCH": Entry("a switch that is on, lost or unreadable blocks new starts, and nothing else", OWN),
    "OWN-SWITCH-SYNC": Entry("a blocked call that asked for no task is served without one where policy says so", OWN),
    "OWN-KEY-ONCE": Entry("an idempotency key begins one operation, for its owner and its tool", OWN),
    "OWN-LEDGER": Entry("the ledger tells of each operation what was intended, what became of it and who said so", OWN),
    "OWN-APPROVE": Entry("what is to be approved is sent once, after the requestor agreed, and not otherwise", OWN),
    "OWN-ONE-MEANING": Entry("what is shown, kept and compared of a call's arguments is what its upstream reads", OWN),
    "OWN-RECONCILE": Entry("an unknown outcome stays unknown until an authority or a person tells", OWN),
    "OWN-AGAIN": Entry("a client that asks twice for a stream that has ended outlasts a restart of the gateway", OWN),
    "OWN-ROLL": Entry("gateways are replaced one by one while clients wait: nothing lost, nothing sent twice", OWN),
    "OWN-DRAIN": Entry("a stopped gateway lets running calls finish and tells the truth about the rest", OWN),
}
