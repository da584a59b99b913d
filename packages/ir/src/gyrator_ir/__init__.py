"""The three levels of intermediate representation, as data and as text, and what every stage shares."""
