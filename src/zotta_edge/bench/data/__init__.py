"""Labelled images and the streams made of them."""
