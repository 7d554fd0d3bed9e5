"""What people look at: the live view of a run, and its report as a page and in characters. Nothing here asks a scheduler."""
