"""The task and operation machines: pure values and functions, no I/O and no clock.

`model` holds the two records, `task` and `operation` their transition tables, `commands` what can be done to them,
`engine` the one function that joins them, `diagram` draws the tables for ARCHITECTURE.md.
"""
