"""The write-ahead log of a region: append entries, and read the committed entries back and verify them."""
