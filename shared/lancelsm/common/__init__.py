"""What every room uses: names and numbers of objects, time and chance, sums, settings. It imports no other room."""
