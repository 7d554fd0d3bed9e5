"""Facts about one cluster: built-in profiles (*.yaml, data), those of a user or a site, and what
the live scheduler reports on top.

Independent of jobs: `config` turns a profile into the lowest layer of a job config, `checks.job`
compares a job with it.
"""
