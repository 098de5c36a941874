"""The commands of `mcp-task-gateway`."""
