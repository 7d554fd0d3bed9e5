"""A reader of shell text: simple commands with their words, and where each expansion happens. Nothing is run.

It reads what bash reads, tolerantly: what cannot be read becomes a problem in the result, never an exception.
"""
