"""A slow MCP server that knows nothing of tasks: what a platform team already has.

Run it with `python examples/slow_server.py [PORT]`; it listens on 127.0.0.1 only. With `stdio` instead of a port it
speaks over its standard streams.
"""

import asyncio
import sys

from mcp.server import MCPServer

server = MCPServer("slow-reports")


@server.tool()
async def build_report(account: str, seconds: float = 5) -> str:
    """Builds a report, which takes its time."""
    await asyncio.sleep(seconds)
    return f"Report for {account}: all is well."


@server.tool()
async def greet(name: str) -> str:
    """Answers at once."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    if sys.argv[1:] == ["stdio"]:
        server.run(transport="stdio")
    else:
        port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
        server.run(transport="streamable-http", host="127.0.0.1", port=port)
