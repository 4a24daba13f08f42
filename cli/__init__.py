"""The command line: one file a command, gathered in :mod:`radixtide.cli.main`."""
