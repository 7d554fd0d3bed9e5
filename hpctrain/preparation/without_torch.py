"""Imported first by the server that workers are forked from: transformers' tokenizers without torch, which they would import and not use.

It saves a second and 200 MB for each preparation. Never import this in a process that may want torch later.
"""

from __future__ import annotations

import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it would advise to install torch
sys.modules["torch"] = None  # type: ignore[assignment] # the import system's own word for "there is none"
from transformers import AutoTokenizer  # noqa: E402, F401 - to be there, now that torch is not
