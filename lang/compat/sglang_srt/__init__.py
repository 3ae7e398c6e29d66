"""Stand-ins for the modules of `sglang.srt` that programs import."""
