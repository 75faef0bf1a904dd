"""What a user writes: scenario files, router files, series. Text in, a checked specification out."""
