"""An engine whose model runs in a separate process.

    Engine ── RemoteCore ── Link ══ socket ══ Worker ── EngineCore         the cut is at the core
                  └ supervises Child, makes the next Link when one dies

Everything above the core is the same: sequences queue operations and get futures. What crosses the socket is in
`messages`. One reader thread in the parent hands out what comes back, one writer thread on each side sends whatever
has gathered since it sent last, so that a step of many streams costs one message.
"""
