"""Zeroth-order optimisation: parameters, estimator, objective, optimiser."""
