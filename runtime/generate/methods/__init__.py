"""Ways to adapt a decoder, one module each."""
