"""The servers behind the gateway.

port   what the loops ask of an upstream
http   MCP over streamable HTTP, revisions with a handshake
"""
