"""Prepares data for training once, on the login node: text in, a tokenized dataset out that the
training only has to load.

No torch. The tokenizer comes from transformers; the output is a dataset for
`datasets.load_from_disk`.
"""
