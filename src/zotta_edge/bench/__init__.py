"""`zotta-edge bench`: does adaptation help on this model and these images, and what does it cost?

A run is a grid of conditions (model x method x scenario x stream x seed). Each is measured in a
process of its own and leaves one file, so a run that was stopped goes on where it was. Tables,
curves and the report are derived from those files.
"""
