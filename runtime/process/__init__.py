"""An engine whose model runs in a separate process.

    Engine ── RemoteCore ── EngineConnection ══ channel ══ EngineWorker ── EngineCore         the cut is at the core
                  └ supervises a ChildProcess, makes the next connection when one dies

Everything above the core is the same: sequences queue operations and get futures. What crosses the channel is in
`process_messages`. One reader thread in the parent hands out what comes back. One writer thread on each side sends
whatever has gathered since it sent last, so that a step of many streams costs one message.
"""
