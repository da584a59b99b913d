"""Translation of torch's symbols, schemas, dtypes and source lines to the IR's."""
