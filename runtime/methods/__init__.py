"""Ways to adapt: each is one file or package behind one small interface, chosen by name."""
