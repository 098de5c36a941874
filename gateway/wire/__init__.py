"""Both dialects, as pure functions: bytes and headers in, an `Intent` out; records in, bytes out.

jsonrpc    envelopes with everything that is not ours kept as bytes
limits     what is refused before anything is believed
classify   headers and body to an era and an intent, or a rejection
intent     what a requestor can want
tasks_2025, tasks_ext   how each dialect writes a record
tools      what each era sees of a tool list
modern_client, mirrored, rounds   what is said to an upstream of the modern era, and read from it
errors     the one table of refusals
"""
