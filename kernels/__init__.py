"""The lossless codec: one wire format, several backends."""
