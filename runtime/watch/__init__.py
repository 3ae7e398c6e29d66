"""What an engine reports: statistics, step traces, recorded texts."""
