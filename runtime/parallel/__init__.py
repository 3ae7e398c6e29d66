"""One model on several devices: what each rank holds of it, how they add up their results, and their processes."""
