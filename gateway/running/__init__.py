"""The runner loop: claim -> open upstream -> apply(sent) + commit -> perform -> apply(answer) + commit.

`runner` claims and drains, `performing` sees one call through, `holder` writes what becomes of it, under its fence.
"""
