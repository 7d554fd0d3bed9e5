"""Data made ready for training, once, on the login node: text in, a tokenised dataset that a training only loads out.

No torch. The tokenizer comes from transformers, and what is written is what `datasets.load_from_disk` reads.
"""
