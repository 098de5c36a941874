"""What the operator wrote: models, and loading that reports every problem at once as `file:line: key: message`."""
