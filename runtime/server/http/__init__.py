"""HTTP below the protocols: connection, middleware, bodies, limits, errors, server-sent events, OpenAPI document."""
