"""What the text forms of the four levels share: lines, words, and forms that print and parse."""
