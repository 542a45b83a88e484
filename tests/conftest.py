"""For all tests."""

import structlog

# structlog's own default prints tracebacks with every local variable, which takes minutes where one is deep.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
