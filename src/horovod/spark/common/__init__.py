"""Estimators for any framework: parameters, data preparation, backends, training on a rank, models."""
