"""What sources hold: their segments, records and rows, and where to cut and split them."""
