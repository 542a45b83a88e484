"""The embedded environments and the OpenEnv server that serves them: the other end of `gymserve.wire`, on Trio."""
