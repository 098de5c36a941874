"""The servers behind the gateway.

port   what the loops ask of an upstream
http   MCP over streamable HTTP, revisions with a handshake
sse    MCP over HTTP+SSE, the transport of 2024-11-05; `stream` is one connection, `endpoint` where messages go
auto   finds out what a URL speaks
stdio  MCP over the standard streams of child processes, likewise; `child`, `process`, `keeper`, `lines`, `stderr`
       are its parts

`pool`, `session` and `dialogue` are for transports whose sessions live in this process.
"""
