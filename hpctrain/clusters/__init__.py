"""Facts of one cluster: shipped profiles (*.yaml, data), a user's or a site's own, and what the live scheduler says on top.

Knows nothing of jobs: `config` turns a profile into the weakest layer of a job config, `jobs.check` compares a job with it.
"""
