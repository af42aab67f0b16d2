"""Machine descriptions as TOML and published calibration tables, each with its source."""
