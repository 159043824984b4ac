"""Encoded documents to packed sequences."""
