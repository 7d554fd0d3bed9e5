"""Estimates of the GPU memory, host memory and time that a training needs, made before it queues
from config.json and numbers alone.

Pure: no torch, no files, no clock. Sizes are bytes, speeds per second.
"""
