"""x"""

SEPARATOR = "\x1f"
SINFO_FORMAT = SEPARATOR.join(("%V", "%P", "%a", "%l", "%L", "%s", "%h", "%D", "%F", "%c", "%m", "%Z", "%G", "%b"))
USER_FIELDS = (
    "User",
    "DefaultAccount",
    "Cluster",
    "Account",
    "Partition",
    "QOS",
    "DefaultQOS",
    "MaxWall",
    "MaxSubmitJobs",
    "MaxTRES",
    "GrpTRES",
)
QOS_FIELDS = ("Name", "MaxWall", "MaxTRES", "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU", "MinTRES", "Flags")
