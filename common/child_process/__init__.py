"""One channel to child processes.

    ChildProcess ── MessageChannel ══ pair of sockets ══ MessageChannel ── begin(channel, ...) of a module

What messages say, and what becomes of those who wait when a child dies, is the affair of those who start one.
"""
