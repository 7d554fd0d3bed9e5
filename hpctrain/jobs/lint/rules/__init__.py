"""The rules of `hpctrain lint`, by topic; each is a generator of hits over the facts of one script."""
