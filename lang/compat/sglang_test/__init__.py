"""Stand-ins for `sglang.test`, so that test files written for sglang run here."""
