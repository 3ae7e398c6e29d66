"""Regular expressions of the texts that types are read from."""
