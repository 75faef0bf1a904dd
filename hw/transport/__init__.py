"""Communication between processes: messages, the connections that transport them, and shared memory."""
