"""HTTP in and out.

http     the MCP endpoint
streams  answers that are written as event streams
admin    health, readiness and metrics, on a listener of their own
"""
