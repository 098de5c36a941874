"""The operator's side: what may be looked at and done, and what is written down of it."""
