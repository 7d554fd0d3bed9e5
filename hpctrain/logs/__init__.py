"""The logs of jobs: find the files, clean their lines, read them completely, in part, or as they
grow.

Only reads files: queries no scheduler, prints nothing. Log content is untrusted.
"""
