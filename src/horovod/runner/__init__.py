"""Names that scripts and tools import from here; the launcher itself is `horovod.launch`."""
