"""The logs of jobs: which files they are, what their lines say once cleaned, and reading them whole, in part, or as they grow.

Reads files and nothing else: no scheduler is asked, nothing is printed. What is in a line is never trusted.
"""
