"""HTTP in and out.

http      the MCP endpoint
auth      who calls
keys      the public keys of issuers
resource  what clients must know to get a token
listener  what is answered to heads that cannot be read
streams   answers that are written as event streams
admin     health, readiness and metrics, on a listener of their own
"""
