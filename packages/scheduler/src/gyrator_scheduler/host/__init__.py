"""From a schedule to a host program."""
