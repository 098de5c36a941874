"""The records in Redis. Python decides what a record becomes, a script agrees or refuses, all or nothing.

port      what the loops ask of a store
keys      every key there is, and which of them live for ever
codec     records to bytes and back, with their schema number
redis     the one implementation
batch     the commands of one event-loop tick in one round trip
wake      hints that something changed
lua/      create, commit, claim, poll
embedded  the server that the gateway brings itself
"""
