"""Bayesian Quadrature for Neural Ensemble Search, JAX-native and functional."""
