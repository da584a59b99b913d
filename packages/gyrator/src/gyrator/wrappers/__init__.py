"""Host languages that need more than their emitter: a compiler, a loader, a way to be called."""
