"""Records as each release wrote them. From one release to the next they must be read, claimed and finished."""
