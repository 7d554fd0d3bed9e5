"""A cluster profile for the tests of doctor."""

from typing import Any

from hpctrain.clusters.profile import Cluster, Profile


def cluster(**more: Any) -> Cluster:
    nodes = {"n": {"gpus": 4, "gpu": "A100", "vendor": "cuda", "arch": "x86_64"}}
    return Cluster(Profile.read({"name": "x", "title": "X", "nodes": nodes, **more}))
