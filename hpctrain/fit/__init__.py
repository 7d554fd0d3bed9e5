"""What a training needs of a GPU and of a node, and how long it takes, worked out before it queues: from config.json and numbers alone.

Pure: no torch, no files, no clock. Sizes are bytes, speeds per second.
"""
