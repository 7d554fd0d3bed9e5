"""Uploading a project to the cluster: which files are sent (`rules`: pure), and rsync (`sync`)."""
