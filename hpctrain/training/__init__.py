"""The torch side: the SFT script, its callbacks, and the demo's data. Nothing else in hpctrain imports this room."""
