"""From Wrapper IR to the text of a C++ host program."""
