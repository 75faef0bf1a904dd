"""What passes between processes: messages, the connections that carry them, and the memory that they share."""
