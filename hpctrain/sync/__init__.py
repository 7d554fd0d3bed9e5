"""Bringing a project to the cluster: what is sent where, as text. PURE: no process, file, environment or clock.

`destination` reads HOST:PATH, `rules` makes rsync's filter rules, `commands` the words of ssh, rsync and the far side's shell, and
`changes` reads what rsync prints. The processes are started by `hpctrain.scheduler.remote`.
"""
