"""The model file as sessions: opened, cut in stem and cone, cached, counted."""
