"""One file for each subcommand: `add_parser` declares its arguments, `run` does it. Read `node` first."""
