"""Evaluation sets, ranking metrics and the baselines that a model is held against."""
