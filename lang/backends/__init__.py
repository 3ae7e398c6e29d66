"""Where programs run. Each backend implements `sgl.lang.backend`."""
