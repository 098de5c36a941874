"""The servers behind the gateway.

port   what the loops ask of an upstream
http   MCP over streamable HTTP, revisions with a handshake
modern the same for revision 2026-07-28, without handshake and sessions; `schemas` which arguments go into headers
eras   a server at one URL in whichever of the two it speaks; `discovery` is the question
sse    MCP over HTTP+SSE, the transport of 2024-11-05; `stream` is one connection, `endpoint` where messages go
auto   finds out what a URL speaks
stdio  MCP over the standard streams of child processes, in both eras; `greeting` finds out which; `child`, `process`,
       `keeper`, `lines`, `stderr` are its parts
rounds requests whose server may answer with questions, sent again with the answers
once   work that several callers want at the same time

`pool`, `session` and `dialogue` are for transports whose sessions live in this process.
"""
