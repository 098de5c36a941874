"""A scriptable MCP server of revision 2025-06-18 over its standard streams, for tests.

    python server.py FOLDER [MODE]

Every message that arrives is written to FOLDER/seen, a line each with the process that got it. The tool `gate` waits
for the file FOLDER/gate-NAME. MODE is one way to misbehave from the start.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
BROKEN: list[bool] = []
MODE = sys.argv[2] if len(sys.argv) > 2 else ""
TOOLS = ["echo", "gate", "fail", "error", "progress", "ask", "plain", "required", "odd"]
ODD = (
    b'{"content":[{"type":"text","text":"caf\\u00e9 \\ud83d\\ude00"}],"structuredContent":'
    b'{"big":9007199254740993,"huge":1e400,"one":1.0,"zero":-0},'
    b'"_meta":{"com.example/k":[1, 2]},"unknown":{"z":1,"a":2}}'
)
OUTPUT = threading.Lock()
ANSWERS: dict[str, dict] = {}
ANSWERED = threading.Condition()
MEMORY: list[str] = []


def say(message: dict | bytes) -> None:
    line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
    with OUTPUT:
        write(line + b"\n")


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def answer(message: dict, result: dict) -> None:
    say({"id": message["id"], "result": result})


def text(message: dict, value: str) -> None:
    answer(message, {"content": [{"type": "text", "text": value}]})


def wait_for(condition) -> None:
    while not condition():
        time.sleep(0.005)


def ask(request_id: str, method: str, params: dict | None = None) -> dict:
    """What the client answers."""
    say({"id": request_id, "method": method, "params": params or {}})
    with ANSWERED:
        ANSWERED.wait_for(lambda: request_id in ANSWERS)
    return ANSWERS.pop(request_id)


def echo(message: dict, arguments: dict) -> None:
    text(message, json.dumps(arguments))


def pid(message: dict, _: dict) -> None:
    text(message, str(os.getpid()))


def environment(message: dict, _: dict) -> None:
    text(message, json.dumps({**os.environ, "cwd": str(Path.cwd())}))


def gate(message: dict, arguments: dict) -> None:
    wait_for((FOLDER / f"gate-{arguments['name']}").exists)
    text(message, f"through {arguments['name']}")


def charge(message: dict, arguments: dict) -> None:
    """Asks first if told to, then has its effect, which the file `ledger` counts, and answers when its gate is open."""
    if arguments.get("ask"):
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        ask(f"q-{message['id']}", "elicitation/create", {"message": "Who?", "requestedSchema": schema})
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(json.dumps(arguments) + "\n")
    if "gate" in arguments:
        wait_for((FOLDER / f"gate-{arguments['gate']}").exists)
    text(message, "charged")


def fail(message: dict, _: dict) -> None:
    told = {"content": [{"type": "text", "text": "no"}], "structuredContent": {"errors": [1]}, "isError": True}
    answer(message, told)


def error(message: dict, _: dict) -> None:
    told = {"code": -32002, "message": "no such thing", "data": {"uri": "x", "n": 1.0}}
    say({"id": message["id"], "error": told})


def odd(message: dict, _: dict) -> None:
    say(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (message["id"], ODD))


def progress(message: dict, arguments: dict) -> None:
    token = message["params"].get("_meta", {}).get("progressToken")
    for done in (1, 2):
        note = {"progressToken": token, "progress": done, "message": f"step {done}"}
        say({"method": "notifications/progress", "params": note})
    if "name" in arguments:
        wait_for((FOLDER / f"gate-{arguments['name']}").exists)
    answer(message, {"content": []})


def question(message: dict, arguments: dict) -> None:
    """Asks one thing and tells what it heard."""
    heard = ask(f"q-{message['id']}", arguments.get("method", "elicitation/create"), arguments.get("params"))
    text(message, json.dumps(heard))


def ask_both(message: dict, _: dict) -> None:
    """Asks the client something although it declared nothing, and tells what it heard."""
    heard = [ask("q1", "elicitation/create"), ask("q2", "ping")]
    text(message, json.dumps(heard))


def chatter(message: dict, _: dict) -> None:
    """Says what nobody asked for, then answers."""
    say({"method": "notifications/tools/list_changed"})
    say({"method": "notifications/unheard-of", "params": {"x": 1}})
    say({"method": "notifications/progress", "params": {"progressToken": "another", "progress": 1}})
    say({"id": 999_999, "result": {}})
    text(message, "done")


def leave(_: dict, arguments: dict) -> None:
    """Ends in the middle of a call, with an exit code or by a signal."""
    if "signal" in arguments:
        os.kill(os.getpid(), arguments["signal"])
    os._exit(arguments.get("code", 3))


def exit_once(message: dict, _: dict) -> None:
    """Ends in the middle of the first call, and answers the second."""
    been_here = FOLDER / "been-here"
    if not been_here.exists():
        been_here.touch()
        os._exit(3)
    text(message, "survived")


def last_words(message: dict, arguments: dict) -> None:
    """Answers and ends."""
    text(message, "x" * arguments.get("size", 1))
    os._exit(0)


def half(message: dict, _: dict) -> None:
    with OUTPUT:
        write(b'{"jsonrpc":"2.0","id":%d,"result":{' % message["id"])


def huge(message: dict, arguments: dict) -> None:
    text(message, "x" * arguments["size"])


def endless(_: dict, __: dict) -> None:
    """A line that never ends."""
    with OUTPUT:
        while True:
            write(b"x" * 65_536)


def mute(_: dict, __: dict) -> None:
    """Closes its output and lives on."""
    os.close(1)


def deaf(message: dict, _: dict) -> None:
    """Closes its input and answers all the same."""
    os.close(0)
    text(message, "heard")
    time.sleep(600)


def garbage(message: dict, _: dict) -> None:
    """What carries the id of the call and is no answer."""
    say({"id": message["id"], "result": 5})


def deep(message: dict, _: dict) -> None:
    say(b'{"jsonrpc":"2.0","id":%d,"result":{"a":%s%s}}' % (message["id"], b"[" * 5000, b"]" * 5000))


def printed(message: dict, _: dict) -> None:
    """Prints between messages, as servers do that log to standard output."""
    for line in (b"listening", b'{"level":"info","id":%d,"msg":"x"}' % message["id"], b"", b"\xff\xfe", b"[1]"):
        say(line)
    text(message, "done")


def errors(message: dict, arguments: dict) -> None:
    """Floods its standard error."""
    line = b"e" * 79 + b"\n"
    for _ in range(arguments["bytes"] // len(line)):
        os.write(2, line)
    text(message, "done")


def complain(message: dict, arguments: dict) -> None:
    os.write(2, arguments["text"].encode())
    text(message, "done")


def spawn(message: dict, arguments: dict) -> None:
    """Starts something that does not end when it is asked to, and tells its process id."""
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=arguments.get("detached", False),
    )
    child.stdout.readline()
    text(message, str(child.pid))


def hold_output(message: dict, _: dict) -> None:
    """Ends in the middle of a call, and leaves something behind that holds its standard output."""
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    os._exit(4)


def remember(message: dict, arguments: dict) -> None:
    MEMORY.append(arguments["what"])
    text(message, "kept")


def recall(message: dict, _: dict) -> None:
    text(message, json.dumps(MEMORY))


CALLS = {
    "env": environment,
    "question": question,
    "ask": ask_both,
    "exit": leave,
    "spawn": spawn,
    "print": printed,
    "gate": gate,
    "charge": charge,
    "fail": fail,
    "error": error,
    "odd": odd,
    "progress": progress,
    "chatter": chatter,
    "pid": pid,
    "last_words": last_words,
    "half": half,
    "huge": huge,
    "endless": endless,
    "mute": mute,
    "garbage": garbage,
    "deep": deep,
    "errors": errors,
    "complain": complain,
    "hold_output": hold_output,
    "remember": remember,
    "recall": recall,
    "deaf": deaf,
    "exit_once": exit_once,
}


def initialize(message: dict) -> None:
    if MODE == "never-ready":
        return
    if MODE == "asks-first":
        ask("early", "ping")
    version = "1999-01-01" if MODE == "old" else "2025-06-18"
    answer(message, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "u"}})
    if MODE == "short-lived":
        os._exit(5)


def serve(message: dict) -> None:
    method = message.get("method")
    if MODE == "strict" and method == "server/discover":
        os._exit(8)
    if method == "initialize":
        initialize(message)
    elif method == "tools/list":
        listed = [{"name": name, "inputSchema": {"type": "object"}, "x": 1.0} for name in TOOLS]
        answer(message, {"tools": listed, "nextCursor": "more"})
    elif method == "tools/call":
        CALLS.get(message["params"]["name"], echo)(message, message["params"].get("arguments", {}))
    elif "id" in message and MODE != "silent":
        say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


def heard(message: dict) -> bool:
    """An answer to a question."""
    if "method" in message:
        return False
    with ANSWERED:
        ANSWERS[message["id"]] = message
        ANSWERED.notify_all()
    return True


def broken(message: dict) -> bool:
    """A fragile server answers nothing any more once something was cancelled."""
    if MODE == "fragile" and message.get("method") == "notifications/cancelled":
        BROKEN.append(True)
    return bool(BROKEN)


def main() -> None:
    if MODE == "exit" or (FOLDER / "down").exists():
        os._exit(7)
    if MODE == "traceback":
        raise RuntimeError("no database")
    if MODE == "banner":
        say(b"Welcome to the server")
        say(b"it is a fine day")
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with (FOLDER / "seen").open("ab", buffering=0) as seen:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            seen.write(json.dumps({"pid": os.getpid(), "message": message}).encode() + b"\n")
            if broken(message) or heard(message):
                continue
            if message.get("params", {}).get("name") == "deaf":  # not beside a thread that reads
                serve(message)
            threading.Thread(target=serve, args=[message], daemon=True).start()
    if MODE in ("stubborn", "late"):
        time.sleep(600)
    if MODE == "crash":
        os._exit(9)
    os._exit(0)


if __name__ == "__main__":
    main()
