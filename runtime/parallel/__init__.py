"""One model on several devices: what each rank holds of it, how they add up what
they compute, and the processes they run in.
"""
