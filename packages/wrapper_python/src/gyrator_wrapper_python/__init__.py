"""From Wrapper IR to the text of a Python host program."""
