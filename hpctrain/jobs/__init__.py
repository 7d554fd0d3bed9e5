"""Jobs: rendering their scripts, and submitting, resubmitting, deleting and explaining them.

`render`, `directives` and `templates` are pure: facts and template texts are passed in as
arguments.
"""
