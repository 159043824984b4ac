"""Recipe of the mini model: data, training, evaluation sets and export.

Every step is a module that is run as ``python -m recipe.<step>`` from ``engines/mini``;
README.md lists them in order. Nothing here is needed to serve a model.
"""
