"""`python -m sgl` is the command `sgl`."""

from sgl.cli import main

raise SystemExit(main())
