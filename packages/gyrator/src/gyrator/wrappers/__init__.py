"""Host languages that need a compiler or a loader in addition to their emitter."""
