"""torch's symbols, schemas, dtypes and source lines in the names of the IR."""
