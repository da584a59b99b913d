"""What kernel emitters share: tiling, masks, index text and a writer with a source map."""
