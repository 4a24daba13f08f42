"""Configuration: the schema, its reader, the presets (``*.toml``), and every error's class."""
