"""The torch side: the SFT script, its callbacks, and the demo's data.

No other package of hpctrain imports this one.
"""

import logging

# When peft imports it, it warns that the CPU lacks a kernel from the hub, which GPUs do not need.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
