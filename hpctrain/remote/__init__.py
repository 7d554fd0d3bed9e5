"""Uploading a project to the cluster: what to send (`rsync`, `rules`: pure), the ssh connection,
and the steps (`sync`).
"""
