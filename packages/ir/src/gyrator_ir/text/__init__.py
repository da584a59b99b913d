"""What the text forms of the three levels share: lines, words, and forms that print and parse."""
