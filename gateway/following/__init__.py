"""Tasks that an upstream makes of its own: which tools do, how one is asked about, calls that are none here."""
