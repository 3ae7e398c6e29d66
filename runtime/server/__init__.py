"""The HTTP server: the native protocol and OpenAI's, on one engine in this process.

    sgl serve path/to/model --port 30000

`app.create_app(engine, settings)` is the ASGI application; importing this package imports none of its parts.
"""
