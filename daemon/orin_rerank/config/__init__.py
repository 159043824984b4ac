"""The settings file: one typed TOML file with environment overrides, checked as a whole before anything starts."""
