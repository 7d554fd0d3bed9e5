"""`python -m hpctrain`."""

from hpctrain.cli import main

main()
